#!/usr/bin/env python3
"""PyTorch beside Runnel, measured in one run: attention alone, the gated delta rule alone, or a training step of the
paper's MNIST model.

    gpu_peers.py attention --batch 10 --lengths 784 3072
    gpu_peers.py gated
    gpu_peers.py training

As in `runnel bench`, a time is the median of some calls, forward and backward, each with the wait for the device. A line
names what was measured and its ratio to Runnel's time: above 1, Runnel is faster. PyTorch runs eagerly, compiled, and,
on a GPU, as a CUDA graph of the compiled code; flash-linear-attention (fla) runs if it is installed. bfloat16: inputs
of attention, or a step under autocast, whose parameters and optimizer stay in float32.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit('gpu_peers.py: PyTorch is not installed; pip install torch')
try:
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.linear_attn import chunk_linear_attn
except ImportError:
    chunk_linear_attn = None


def features(x):
    return F.elu(x) + 1


def linear_attention(q, k, v, chunk=64):
    """Causal, [B,L,H,E] -> [B,L,H,M]: sums over earlier chunks by a prefix sum, those within a chunk by a mask."""
    b, length, h, _ = q.shape

    def chunked(x):  # [B,H,N,C,E]
        x = F.pad(x, (0, 0, 0, 0, 0, -length % chunk))
        return x.view(b, -1, chunk, h, x.shape[-1]).permute(0, 3, 1, 2, 4)

    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)  # its last column sums to the normaliser
    q, k, v = chunked(features(q)), chunked(features(k)), chunked(v)
    state = k.transpose(-1, -2) @ v
    y = (q @ k.transpose(-1, -2)).tril() @ v + q @ (state.cumsum(2) - state)
    y = y[..., :-1] / y[..., -1:]
    return y.permute(0, 2, 3, 1, 4).reshape(b, -1, h, y.shape[-1])[:, :length]


def fla_attention(q, k, v):
    return chunk_linear_attn(features(q), features(k), v, scale=1.0, normalize=True)[0]


def gated_delta_rule(q, k, v, decay, beta):
    """The definition: [B,L,H,E] [B,L,H,E] [B,L,H,M] [B,L,H] [B,L,H] -> [B,L,H,M]; decay is a logarithm."""
    b, length, h, e = k.shape
    state, y = torch.zeros(b, h, e, v.shape[-1], device=k.device), []
    for t in range(length):
        state = decay[:, t, :, None, None].exp() * state
        seen = torch.einsum('bhem,bhe->bhm', state, k[:, t])
        state = state + torch.einsum('bhe,bhm->bhem', k[:, t], beta[:, t, :, None] * (v[:, t] - seen))
        y.append(torch.einsum('bhem,bhe->bhm', state, q[:, t]))
    return torch.stack(y, 1)


def fla_gated_delta_rule(q, k, v, decay, beta):
    return chunk_gated_delta_rule(q, k, v, decay, beta, scale=1.0)[0]


def gated_inputs(b, length, h, e, device, dtype):
    q, k, v = (torch.randn(b, length, h, e, device=device) for _ in range(3))
    decay, beta = -0.2 * torch.rand(b, length, h, device=device), torch.rand(b, length, h, device=device)
    k = F.normalize(k, dim=-1)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)] + [decay.requires_grad_(), beta.to(dtype).requires_grad_()]


def softmax_attention(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def check(function, y, expected):
    error = ((y - expected).norm() / expected.norm()).item()
    if not error < 1e-2:
        sys.exit(f'gpu_peers.py: {function.__name__} is wrong by {error:.2g} of its norm; its time would mean nothing')


def check_linear_attention(device):
    q, k, v = (torch.randn(2, 100, 3, 16, device=device) for _ in range(3))
    a = torch.einsum('blhe,bshe->bhls', features(q), features(k)).tril()
    expected = torch.einsum('bhls,bshm->blhm', a / a.sum(-1, keepdim=True), v)
    for function in [linear_attention] + ([fla_attention] if chunk_linear_attn and device == 'cuda' else []):
        check(function, function(q, k, v), expected)


def wait(device):
    if device == 'cuda':
        torch.cuda.synchronize()


def milliseconds(o, call):
    call()
    wait(o.device)
    times = []
    for _ in range(o.runs):
        begin = time.perf_counter()
        call()
        wait(o.device)
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


def graph_of(call):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def forms(o, make, compiles=True):
    """(name, call) of each way to run what make(compile) returns, one after another."""
    yield 'eager', lambda: make(lambda f: f)
    if compiles:
        yield 'compiled', lambda: make(torch.compile)
    if o.device == 'cuda':
        yield 'CUDA graph', lambda: graph_of(make(torch.compile if compiles else lambda f: f))


def report(o, what, make, ours, compiles=True):
    """Prints a line for each form; returns the shortest time."""
    best = math.inf
    for form, build in forms(o, make, compiles):
        if o.only not in f'{what}, {form}':
            continue
        o.found = True
        try:
            ms = milliseconds(o, build())
        except Exception as error:  # not installed, out of memory, not supported: another form may still run
            print(f'{what}, {form}: not measured: {str(error).strip().splitlines()[0][:120]}', flush=True)
            continue
        best = min(best, ms)
        print(f"{what}, {form}: {ms:.3f} ms, {ms / ours:.2f} x Runnel's {ours:.3f} ms", flush=True)
    return best


def runnel(o, *words):
    words = [o.runnel, 'bench', *words, '--json', '--device', o.device, '--precision', o.precision]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        sys.exit(f'gpu_peers.py: --runnel {o.runnel} cannot be run: {error.strerror}')
    if done.returncode:
        sys.exit(f"gpu_peers.py: {' '.join(words)} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(done.stdout)['rows']


def attention(o):
    check_linear_attention(o.device)
    for length in o.lengths:
        with tempfile.TemporaryDirectory() as folder:
            rows = runnel(o, 'attention', '--attention', 'linear,softmax', '--batch', str(o.batch), '--heads', str(o.heads),
                          '--head-dim', str(o.head_dim), '--lengths', str(length), '--runs', str(o.runs), '--out', folder)
        ours = {row['method']: row['ms/sample'] * o.batch for row in rows}
        if 'linear' not in ours or 'softmax' not in ours:
            sys.exit(f'gpu_peers.py: length {length} takes Runnel too long or too much memory; give shorter --lengths')
        size = f'B {o.batch}, H {o.heads}, L {length}'

        def of(function, dtype):
            shape = (o.batch, length, o.heads, o.head_dim)
            q, k, v, dy = (torch.randn(shape, device=o.device, dtype=dtype) for _ in range(4))
            inputs = [x.requires_grad_() for x in (q, k, v)]

            def make(compile):
                f = compile(function)
                return lambda: torch.autograd.grad(f(*inputs), inputs, dy)

            return make

        peers = [('linear attention', linear_attention, torch.float32, True)]
        if chunk_linear_attn and o.device == 'cuda':
            peers += [(f'linear attention, fla, {str(dtype)[6:]}', fla_attention, dtype, False)
                      for dtype in (torch.float32, torch.bfloat16)]
        for name, function, dtype, compiles in peers:
            report(o, f'{name}, {size}', of(function, dtype), ours['linear'], compiles)
        best = min(report(o, f'softmax attention, {size}, {str(dtype)[6:]}', of(softmax_attention, dtype), ours['softmax'], False)
                   for dtype in (torch.float32, torch.bfloat16))
        if best < math.inf:
            print(f"softmax attention, {size}: PyTorch's best takes {best / ours['linear']:.2f} x the time of Runnel's linear "
                  f"attention, Runnel's {ours['softmax'] / ours['linear']:.2f} x", flush=True)


def gated(o):
    """Sizes are those of `runnel bench kernels`. Runnel's times are of the kernels alone, without launches and waits: so
    the ratio of PyTorch's CUDA graph counts."""
    if not chunk_linear_attn or o.device != 'cuda':
        sys.exit('gpu_peers.py: gated needs flash-linear-attention and --device cuda; pip install flash-linear-attention')
    x = gated_inputs(2, 100, 3, 16, o.device, torch.float32)
    check(fla_gated_delta_rule, fla_gated_delta_rule(*x), gated_delta_rule(*x))
    with tempfile.TemporaryDirectory() as folder:
        rows = runnel(o, 'kernels', '--filter', 'gated_linear_attention', '--seconds', '0.05', '--out', folder)
    for batch, length in (64, 128), (1, 8192):
        ours = sum(row['us'] for row in rows if ('one sequence' in row['kernel']) == (batch == 1)) / 1e3
        for dtype in (torch.float32, torch.bfloat16):
            inputs = gated_inputs(batch, length, 8, 32, o.device, dtype)
            dy = torch.randn(batch, length, 8, 32, device=o.device, dtype=dtype)
            report(o, f'gated delta rule, fla, B {batch}, H 8, L {length}, {str(dtype)[6:]}',
                   lambda compile: lambda: torch.autograd.grad(fla_gated_delta_rule(*inputs), inputs, dy), ours, False)


class Layer(torch.nn.Module):
    def __init__(self, attend, width=256, heads=8, hidden=1024, dropout=0.1):
        super().__init__()
        self.attend, self.heads, self.dropout = attend, heads, dropout
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.linear1, self.linear2 = torch.nn.Linear(width, hidden), torch.nn.Linear(hidden, width)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)

    def forward(self, x):
        b, length, width = x.shape
        q, k, v = self.qkv(x).view(b, length, 3, self.heads, -1).unbind(2)
        a = self.out(self.attend(q, k, v).reshape(b, length, width))
        x = self.norm1(x + F.dropout(a, self.dropout))
        y = self.linear2(F.dropout(F.relu(self.linear1(x)), self.dropout))
        return self.norm2(x + F.dropout(y, self.dropout))


class Model(torch.nn.Module):
    """The paper's MNIST model: 783 bytes, each predicted as a mixture of ten logistics."""

    def __init__(self, attend, width=256, layers=8, length=783):
        super().__init__()
        self.embedding = torch.nn.Embedding(256, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = torch.nn.Sequential(*(Layer(attend, width) for _ in range(layers)), torch.nn.LayerNorm(width))
        self.predictor = torch.nn.Linear(width, 30)

    def forward(self, tokens, targets):
        weights, means, scales = self.predictor(self.layers(self.embedding(tokens) + self.positions)).chunk(3, -1)
        x, half = targets[..., None] / 127.5 - 1, 1 / 255
        above, below = ((x + sign * half - means) * torch.exp(-scales) for sign in (1, -1))
        upper = torch.where(x > 0.999, 1.0, torch.sigmoid(above))
        lower = torch.where(x < -0.999, 0.0, torch.sigmoid(below))
        log_p = (upper - lower).clamp_min(1e-12).log() + F.log_softmax(weights, -1)
        return -torch.logsumexp(log_p, -1).mean()


def training(o):
    check_linear_attention(o.device)

    def ours(attention):
        rows = runnel(o, 'training', '--attention', attention, '--runs', str(o.runs))
        return next(row for row in rows if row['model'] == 'MNIST')

    row = ours('linear')
    batch, length = row['batch'], row['length']
    bytes_ = torch.randint(0, 256, (batch, length), device=o.device)

    def of(attend, dtype):
        def make(compile):
            model = Model(attend, length=length).to(o.device)
            optimizer = torch.optim.RAdam(model.parameters(), foreach=True, capturable=o.device == 'cuda')
            loss = compile(model)

            def step():
                optimizer.zero_grad()
                with torch.autocast(o.device, torch.bfloat16, enabled=dtype == torch.bfloat16):
                    value = loss(bytes_, bytes_)
                value.backward()
                optimizer.step()

            return step

        return make

    peers = [('linear', linear_attention, row)]
    if chunk_linear_attn and o.device == 'cuda':
        peers.append(('linear, fla', fla_attention, row))
    if o.device == 'cuda':
        peers.append(('softmax', softmax_attention, ours('softmax')))
    for dtype in (torch.float32, torch.bfloat16)[:2 if o.device == 'cuda' else 1]:
        for name, attend, own in peers:
            report(o, f'training step, MNIST, batch {batch} x {length}, {name}, {str(dtype)[6:]}', of(attend, dtype),
                   own['ms_per_step'])


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=['attention', 'gated', 'training'])
    parser.add_argument('--device', choices=['cuda', 'cpu'], default='cuda')
    parser.add_argument('--precision', choices=['tf32', 'f32'], help='of matrix products; default: tf32 on a GPU, else f32')
    parser.add_argument('--runnel', default=os.path.join(here, 'runnel'), help='the program; default: beside this script')
    parser.add_argument('--batch', type=int, default=1, help='sequences of attention; default 1')
    parser.add_argument('--lengths', type=int, nargs='+', default=[512 << i for i in range(8)],
                        help="of attention; default: those of `runnel bench attention`, 512 to 65536")
    parser.add_argument('--heads', type=int, default=8)
    parser.add_argument('--head-dim', type=int, default=32)
    parser.add_argument('--only', default='', help='measure only what has this in its line, as "linear, bfloat16, CUDA graph"')
    parser.add_argument('--runs', type=int, default=5, help='timed calls, for their median; default 5')
    o = parser.parse_args()
    for name in ('batch', 'heads', 'head_dim', 'runs'):
        if getattr(o, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be 1 or more")
    if min(o.lengths) < 1:
        parser.error('--lengths must be 1 or more')
    if o.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('gpu_peers.py: PyTorch finds no GPU; give --device cpu')
    if o.device == 'cpu' and o.precision == 'tf32':
        parser.error('--precision tf32 is for --device cuda')
    o.precision = o.precision or ('tf32' if o.device == 'cuda' else 'f32')
    torch.set_float32_matmul_precision('high' if o.precision == 'tf32' else 'highest')
    if o.device == 'cpu':
        torch.set_num_threads(len(os.sched_getaffinity(0)))  # as many as Runnel takes
    print(f"PyTorch {torch.__version__}{'' if chunk_linear_attn else ', without fla'}, {o.precision}", flush=True)
    o.found = False
    {'attention': attention, 'gated': gated, 'training': training}[o.what](o)
    if not o.found:
        sys.exit(f'gpu_peers.py: no line has "{o.only}" in it; without --only, all are measured')


if __name__ == '__main__':
    main()
