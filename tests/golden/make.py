"""Golden values for tests/test_golden.cpp: a small model written from the paper's equations in plain PyTorch.

    python3 tests/golden/make.py        writes cross_entropy, logistic_mixture and lstm.safetensors beside itself

Everything is computed in float64 from parameters that are float32 numbers, and stored as float32. Attention is the
O(L^2) definition (eq. 8, with eps added to the denominator after the sum). Each file holds

    parameter.*   where the model starts         tokens, targets (and mask)   numbers, stored as F32
    gradient.*    of the loss at that point      logits, loss                 at that point
    updated.*     after ten RAdam updates on the same batch

with the names of the authors' library for the stars. lstm.safetensors is of PyTorch's own nn.LSTM and ctc_loss, on packed
sequences: x, lengths, targets and target_lengths, y [B,T,2H] of the LSTM, the losses, and gradients of their sum.
"""

import json
import math
import pathlib
import struct

import torch
from torch.nn.functional import elu, layer_norm, linear

LAYERS, HEADS, HEAD_DIM, FEED_FORWARD, BATCH, LENGTH = 2, 2, 8, 32, 3, 13
WIDTH = HEADS * HEAD_DIM


def draw_parameters(vocabulary, outputs):
    """No parameter is 0 or 1, so that each has an effect."""
    parameters = {}

    def draw(name, *shape, scale, shift=0.0):
        values = (shift + scale * torch.randn(*shape, dtype=torch.float64)).float().double()
        parameters[name] = values.requires_grad_()

    def draw_linear(name, n_out, n_in):
        draw(name + ".weight", n_out, n_in, scale=n_in**-0.5)
        draw(name + ".bias", n_out, scale=0.2)

    def draw_norm(name):
        draw(name + ".weight", WIDTH, scale=0.2, shift=1.0)
        draw(name + ".bias", WIDTH, scale=0.2)

    draw("value_embedding.weight", vocabulary, WIDTH // 2, scale=1.0)
    for n in range(LAYERS):
        layer = f"transformer.layers.{n}."
        for projection in ("query", "key", "value", "out"):
            draw_linear(f"{layer}attention.{projection}_projection", WIDTH, WIDTH)
        draw_linear(layer + "linear1", FEED_FORWARD, WIDTH)
        draw_linear(layer + "linear2", WIDTH, FEED_FORWARD)
        draw_norm(layer + "norm1")
        draw_norm(layer + "norm2")
    draw_norm("transformer.norm")
    draw_linear("predictor", outputs, WIDTH)
    return parameters


def position_code(length, width):
    position = torch.arange(length, dtype=torch.float64)[:, None]
    frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.stack([torch.sin(position * frequency), torch.cos(position * frequency)], dim=-1).flatten(1)


def attention(q, k, v):  # [B,L,D] each
    q, k, v = (x.unflatten(2, (HEADS, HEAD_DIM)).transpose(1, 2) for x in (q, k, v))  # [B,H,L,E]
    weights = torch.tril((elu(q) + 1) @ (elu(k) + 1).transpose(2, 3))  # [B,H,L,L]
    y = weights @ v / (weights.sum(3, keepdim=True) + 1e-6)
    return y.transpose(1, 2).flatten(2)


def model(p, tokens):
    def project(name, x):
        return linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(name, x):
        return layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"])

    code = position_code(LENGTH, WIDTH // 2).expand(len(tokens), -1, -1)
    x = torch.cat([p["value_embedding.weight"][tokens], code], dim=2)
    for n in range(LAYERS):
        layer = f"transformer.layers.{n}."
        qkv = [project(f"{layer}attention.{name}_projection", x) for name in ("query", "key", "value")]
        x = norm(layer + "norm1", x + project(layer + "attention.out_projection", attention(*qkv)))
        x = norm(layer + "norm2", x + project(layer + "linear2", torch.relu(project(layer + "linear1", x))))
    return project("predictor", norm("transformer.norm", x))


def cross_entropy(logits, targets, mask):
    nll = -torch.log_softmax(logits, 2).gather(2, targets[:, :, None])[:, :, 0]
    return (nll * mask).mean() / mask.mean()


def logistic_mixture(params, targets):
    """The probability of a byte is a difference of sigmoids; float64 has the digits for it."""
    weight, mean, log_scale = params.chunk(3, dim=2)
    scale = torch.exp(torch.clamp(log_scale, min=-7))
    x = targets[:, :, None] / 127.5 - 1
    below = torch.sigmoid((x - 1 / 255 - mean) / scale)
    above = torch.sigmoid((x + 1 / 255 - mean) / scale)
    below = torch.where(targets[:, :, None] == 0, torch.zeros_like(below), below)
    above = torch.where(targets[:, :, None] == 255, torch.ones_like(above), above)
    return -torch.log((torch.softmax(weight, 2) * (above - below)).sum(2)).mean()


def radam(parameters, gradients, state, t, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01, clip=1.0):
    """RAdam as the authors train: every gradient clipped by itself, momentum alone while v is too young.

    Their rate is 1e-3; ten such updates would hardly show in float32.
    """
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * t * beta2**t / (1 - beta2**t)
    for name, p in parameters.items():
        g = gradients[name] * min(1.0, clip / (gradients[name].norm().item() + 1e-6))
        m, v = state.setdefault(name, (torch.zeros_like(p), torch.zeros_like(p)))
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        state[name] = m, v
        direction = m / (1 - beta1**t)
        if length >= 5:
            rectification = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
            direction = direction * math.sqrt(rectification * (1 - beta2**t)) / (v.sqrt() + eps)
        with torch.no_grad():
            p.copy_(p - weight_decay * lr * p - lr * direction)


def save(path, tensors):
    header, data = {"__metadata__": {"made_by": "tests/golden/make.py", "torch": torch.__version__}}, b""
    for name, tensor in tensors.items():
        values = tensor.detach().flatten().tolist()
        begin = len(data)
        data += struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make(name, vocabulary, outputs, loss_of, batch):
    parameters = draw_parameters(vocabulary, outputs)
    golden = {"parameter." + key: p.clone() for key, p in parameters.items()} | batch
    arguments = {key: value for key, value in batch.items() if key != "tokens"}
    state = {}
    for t in range(1, 11):
        logits = model(parameters, batch["tokens"])
        loss = loss_of(logits, **arguments)
        gradients = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()))))
        if t == 1:
            golden |= {"logits": logits, "loss": loss} | {"gradient." + key: g for key, g in gradients.items()}
        radam(parameters, gradients, state, t)
    golden |= {"updated." + key: p for key, p in parameters.items()}
    save(pathlib.Path(__file__).parent / f"{name}.safetensors", golden)


torch.manual_seed(1)
symbols = torch.randint(0, 11, (BATCH, LENGTH + 1))
mask = (torch.rand(BATCH, LENGTH) < 0.6).double()
make("cross_entropy", 11, 11, cross_entropy, {"tokens": symbols[:, :-1], "targets": symbols[:, 1:], "mask": mask})
pixels = torch.randint(0, 256, (BATCH, LENGTH + 1))
pixels[0, 3:6], pixels[1, 5:9] = 0, 255
make("logistic_mixture", 256, 30, logistic_mixture, {"tokens": pixels[:, :-1], "targets": pixels[:, 1:]})


def make_lstm():
    lstm = torch.nn.LSTM(5, 4, num_layers=2, bidirectional=True, batch_first=True)
    for p in lstm.parameters():
        p.data = (0.6 * torch.randn_like(p)).float()
    lstm = lstm.double()
    lengths, target_lengths = torch.tensor([9, 6, 2]), torch.tensor([3, 2, 0])
    x = torch.randn(3, 9, 5).float().double().requires_grad_()
    targets = torch.tensor([[1, 1, 4], [3, 7, 0], [0, 0, 0]])
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    losses = torch.nn.functional.ctc_loss(
        torch.log_softmax(y, 2).transpose(0, 1), targets, lengths, target_lengths, reduction="none"
    )
    losses.sum().backward()
    golden = {"parameter." + key: p for key, p in lstm.named_parameters()}
    golden |= {"gradient." + key: p.grad for key, p in lstm.named_parameters()} | {"gradient.x": x.grad}
    golden |= {"x": x, "lengths": lengths, "targets": targets, "target_lengths": target_lengths, "y": y, "losses": losses}
    save(pathlib.Path(__file__).parent / "lstm.safetensors", golden)


make_lstm()
