"""Golden values for tests/test_golden.cpp: checkpoints of the program in the authors' library.

    python3 tests/golden/interchange.py        writes interchange.safetensors beside itself

The Python that loads a checkpoint is the block in docs/run-folder.md, executed as it stands there. With it, the four
checkpoints beside this file give the logits of some random tokens. They are computed in float64, where the library's
kernel for causal products, which is float32, is replaced by its definition; what the library itself returns must be
close to that. The file holds

    line.tokens, grid.tokens, colours.tokens, softmax.tokens   numbers, stored as F32
    line.logits, grid.logits, colours.logits, softmax.logits   as F32

and, as metadata, the block, so that the test knows whether docs/run-folder.md still says what was executed. The checkpoints
are the best of 2000 updates:

    runnel mnist train --preset tiny --data synthetic --side 7 --layers 2 --width 16 --heads 2 --feed-forward 32
        --position line|grid --attention linear|softmax --precision f32 --minutes 0 --steps 2000 --out runs/interchange

and of colours those of `runnel cifar10 train --preset tiny --side 8`, with the same sizes.
"""

import pathlib

import fast_transformers.attention.causal_linear_attention as library
import torch
from safetensors.torch import save_file

here = pathlib.Path(__file__).parent
page = (here / "../../docs/run-folder.md").read_text()
block = page.split("```python\n")[1].split("```")[0]
definitions = block.split("\nmodel, c = ")[0]  # what follows reads a file of the reader's
exec(definitions)


def causal_linear(q, k, v):  # [B,L,H,E] [B,L,H,E] [B,L,H,M] -> [B,L,H,M]
    weights = torch.einsum("blhe,bmhe->bhlm", q, k).tril()
    return torch.einsum("bhlm,bmhd->blhd", weights, v).contiguous()


def difference(x, reference):
    return ((x - reference).abs().max() / reference.abs().max()).item()


def set_eps(model, eps):
    for layer in model["transformer"].layers:
        layer.attention.inner_attention.eps = eps


torch.manual_seed(1)
torch.set_grad_enabled(False)
golden = {}
kernel = library.causal_linear
for name in ("line", "grid", "colours", "softmax"):
    model, c = load(here / f"interchange_{name}.safetensors")
    tokens = torch.randint(0, 256, (2, c["max_length"]))
    by_library = logits(model, c, tokens)
    library.causal_linear = causal_linear
    exact = logits(model.double(), c, tokens)
    set_eps(model, 1e-6)
    with_eps = logits(model, c, tokens)
    library.causal_linear = kernel
    golden |= {f"{name}.tokens": tokens.float(), f"{name}.logits": exact.float()}
    print(f"{name}: largest logit {exact.abs().max():.3g}; relative to it, float32 differs by "
          f"{difference(by_library, exact):.1e}, an eps of 1e-6 by {difference(with_eps, exact):.1e}")
    assert difference(by_library, exact) < 1e-4  # the library rounds elu(x) + 1 near 0
save_file(golden, here / "interchange.safetensors", {"lines": block, "torch": torch.__version__})
