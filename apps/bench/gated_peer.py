#!/usr/bin/env python3
"""The gated delta rule in PyTorch beside Runnel's op, forward and backward, on the CPU, in one run.

    gated_peer.py build/runnel [--threads 2] [--alternations 5]

B 1, H 8, L 8,192, E = M = 32, a decay per head, float32. PyTorch computes chunks of 64 positions (Yang et al. 2024, arXiv
2412.06464): everything inside of chunks for all of them at once, the state from chunk to chunk by a loop. Both parts
are compiled; eagerly it runs, too, and the faster one counts. Runnel's time is that of its kernels,
and beside it that of linear attention's: `runnel bench kernels --filter "one sequence"`. Medians of alternating
measurements.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
except ImportError:
    sys.exit('gated_peer.py: PyTorch is not installed; pip install torch')

HEADS, LENGTH, WIDTH, CHUNK = 8, 8192, 32, 64


def inside(q, k, v, beta, g):  # [H,N,C,E] [H,N,C,E] [H,N,C,M] [H,N,C] [H,N,C]
    g = g.cumsum(-1)
    decay = (g[..., :, None] - g[..., None, :]).tril().exp().tril()
    a = (beta[..., None] * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    eye = torch.eye(CHUNK).expand_as(a)
    inverse = torch.linalg.solve_triangular(eye + a, eye, upper=False, unitriangular=True)
    values = inverse @ (beta[..., None] * v)
    keys = inverse @ ((beta * g.exp())[..., None] * k)
    scores = (q @ k.transpose(-1, -2)) * decay
    last = g[..., -1:]
    return values, keys, scores, q * g.exp()[..., None], k * (last - g).exp()[..., None], last.exp()[..., None]


def step(state, values, keys, scores, q, k, kept):  # of one chunk
    u = values - keys @ state
    return q @ state + scores @ u, kept * state + k.transpose(-1, -2) @ u


def attention(q, k, v, beta, g, inside, step):  # [H,L,E] [H,L,E] [H,L,M] [H,L] [H,L] -> [H,L,M]
    chunks = [x.unflatten(1, (-1, CHUNK)) for x in (q, k, v, beta, g)]
    parts = [x.unbind(1) for x in inside(*chunks)]
    state, y = torch.zeros(HEADS, WIDTH, WIDTH), []
    for own in zip(*parts):
        one, state = step(state, *own)
        y.append(one)
    return torch.cat(y, 1)


def recurrence(q, k, v, beta, g):
    state, y = torch.zeros(HEADS, WIDTH, WIDTH, dtype=q.dtype), []
    for t in range(q.shape[1]):
        state = g[:, t, None, None].exp() * state
        u = beta[:, t, None] * (v[:, t] - (state.transpose(-1, -2) @ k[:, t, :, None])[..., 0])
        state = state + k[:, t, :, None] * u[:, None, :]
        y.append((state.transpose(-1, -2) @ q[:, t, :, None])[..., 0])
    return torch.stack(y, 1)


def inputs(length):
    torch.manual_seed(1)
    q, k, v = (torch.randn(HEADS, length, WIDTH) for _ in range(3))
    k = torch.nn.functional.normalize(k, dim=-1)
    beta, g = torch.rand(HEADS, length), -0.2 * torch.rand(HEADS, length)
    return [x.requires_grad_() for x in (q, k, v, beta, g)]


def peer_seconds(forms, x, dy):
    times = []
    for inner, outer in forms:
        for _ in range(3):
            begin = time.perf_counter()
            torch.autograd.grad(attention(*x, inner, outer), x, dy)
            times.append(time.perf_counter() - begin)
    return min(times)


def runnel_seconds(runnel, threads):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([runnel, 'bench', 'kernels', '--filter', 'one sequence', '--threads', str(threads),
                               '--json', '--out', folder], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    us = {row['kernel']: row['us'] for row in json.loads(done.stdout)['rows']}
    return [1e-6 * sum(us[f'{name}_{way}: one sequence'] for way in ('forward', 'backward'))
            for name in ('gated_linear_attention', 'causal_linear_attention')]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runnel')
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--alternations', type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    few = inputs(2 * CHUNK)
    error = (attention(*few, inside, step) - recurrence(*few)).abs().max().item()
    assert error < 1e-3, f'the chunks differ from the recurrence by {error}'
    forms = [(inside, step), (torch.compile(inside), torch.compile(step))]
    x, dy = inputs(LENGTH), torch.randn(HEADS, LENGTH, WIDTH)
    rows = []
    for _ in range(options.alternations):
        rows.append([peer_seconds(forms, x, dy), *runnel_seconds(options.runnel, options.threads)])
        print('ms: PyTorch {:.2f}, Runnel {:.2f}, linear attention {:.2f}'.format(*(1e3 * s for s in rows[-1])),
              flush=True)
    print('medians: PyTorch takes {:.2f} times as long as Runnel, Runnel {:.2f} times as long as linear attention'.format(
        statistics.median(p / r for p, r, _ in rows), statistics.median(r / l for _, r, l in rows)))


if __name__ == '__main__':
    main()
