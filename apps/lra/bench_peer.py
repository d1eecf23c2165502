#!/usr/bin/env python3
"""Training of linear attention on ListOps in PyTorch beside Runnel, on the CPU, alternating in one run.

    bench_peer.py build/runnel [--threads 2] [--precision f32] [--alternations 4]

Both train the preset small (two layers, 64 wide) with AdamW and dropout 0.1 on batches of 32 sequences of similar
length. Runnel reads the data set; PyTorch gets random symbols of five lengths, the quantiles of the data set's. Only
symbols that are not padding count. PyTorch runs eagerly and compiled, and the faster one counts.
"""
import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError:
    sys.exit('bench_peer.py: PyTorch is not installed; pip install torch')

LENGTHS = [539, 701, 953, 1307, 1799]  # quantiles .05, .25, .5, .75, .95 of ListOps
BATCH, WIDTH, HEADS, FEED_FORWARD, DROPOUT = 32, 64, 2, 128, 0.1


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def attend(self, x, mask):  # mask [B,1,L,1]: 1 where there is no padding
        b, length, _ = x.shape
        q, k, v = self.qkv(x).view(b, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        q, k = F.elu(q) + 1, (F.elu(k) + 1) * mask
        state = k.transpose(-1, -2) @ v
        y = (q @ state) / (q @ k.sum(2).unsqueeze(-1) + 1e-6)
        return self.out(y.transpose(1, 2).reshape(b, length, WIDTH))

    def forward(self, x, mask):
        x = x + self.dropout(self.attend(self.norm1(x), mask))
        return x + self.dropout(self.linear2(self.dropout(F.gelu(self.linear1(self.norm2(x))))))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(16, WIDTH), nn.Embedding(2000, WIDTH)
        self.layers, self.norm = nn.ModuleList([Layer(), Layer()]), nn.LayerNorm(WIDTH)
        self.hidden, self.predictor = nn.Linear(WIDTH, FEED_FORWARD), nn.Linear(FEED_FORWARD, 10)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, tokens, lengths):
        mask = (torch.arange(tokens.shape[1]) < lengths[:, None]).float()[..., None]
        x = self.dropout(self.embedding(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            x = layer(x, mask[:, None])
        pooled = (self.norm(x) * mask).sum(1) / lengths[:, None]
        return self.predictor(F.relu(self.hidden(pooled)))


def pytorch_rate(step, batches):
    """Median tokens per second over three rounds of the batches, after one that warms up."""
    rates = []
    for _ in range(4):
        begin = time.perf_counter()
        for batch in batches:
            step(*batch)
        rates.append(sum(int(lengths.sum()) for _, lengths, _ in batches) / (time.perf_counter() - begin))
    return statistics.median(rates[1:])


def runnel_rate(arguments, folder):
    out = os.path.join(folder, 'run')
    subprocess.run([arguments.runnel, 'lra', 'listops', 'train', '--preset', 'small', '--feature-map', 'elu', '--steps', '30',
                    '--log-every', '5',
                    '--validation', '1', '--threads', str(arguments.threads), '--precision', arguments.precision,
                    '--quiet', '--overwrite', '--device', 'cpu', '--out', out], check=True)
    with open(os.path.join(out, 'metrics.csv')) as file:
        return statistics.median(float(row['tokens_per_second']) for row in list(csv.DictReader(file))[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runnel')
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--precision', default='f32')
    parser.add_argument('--alternations', type=int, default=4)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0, fused=True)
    batches = []
    for length in LENGTHS:
        lengths = torch.full((BATCH,), length)
        batches.append((torch.randint(1, 16, (BATCH, length)), lengths, torch.randint(0, 10, (BATCH,))))

    def training_step(forward):
        def step(tokens, lengths, labels):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(forward(tokens, lengths), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return step

    steps = {'eager': training_step(model), 'compiled': training_step(torch.compile(model, dynamic=False))}
    ours, theirs = [], {name: [] for name in steps}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.alternations):
            ours.append(runnel_rate(arguments, folder))
            for name, step in steps.items():
                theirs[name].append(pytorch_rate(step, batches))
    print(f'PyTorch {torch.__version__}, {arguments.threads} threads, medians of {arguments.alternations} alternations')
    print(f'Runnel, {arguments.precision}: {statistics.median(ours):,.0f} tokens/s')
    for name, rates in theirs.items():
        print(f'PyTorch, {name}: {statistics.median(rates):,.0f} tokens/s')
    best = max(statistics.median(rates) for rates in theirs.values())
    print(f'ratio {statistics.median(ours) / best:.2f}')


if __name__ == '__main__':
    main()
