#!/usr/bin/env python3
"""ctc_loss and a Bi-LSTM of 3 x 320, forward and backward, in PyTorch beside Runnel, on the CPU, alternating in one run.

    bench_peer.py build/runnel [--threads 2] [--alternations 5] [--precision f32]

Sizes are those of `runnel bench speech-layers`; both compute in float32, or both round operands to bfloat16 (PyTorch's
autocast), which concerns the Bi-LSTM.
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
    sys.exit('bench_peer.py: PyTorch is not installed; pip install torch')


def median_ms(call):
    call()
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('runnel')
    parser.add_argument('--threads', type=int, default=os.cpu_count())
    parser.add_argument('--alternations', type=int, default=5)
    parser.add_argument('--precision', choices=('f32', 'bf16'), default='f32')
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(1)

    logits = torch.rand(64, 150, 28, requires_grad=True)
    targets = torch.randint(1, 28, (64, 40))
    frames, labels = torch.full((64,), 150), torch.full((64,), 40)

    def ctc():
        logits.grad = None
        log_probabilities = torch.log_softmax(logits, 2).transpose(0, 1)
        torch.nn.functional.ctc_loss(log_probabilities, targets, frames, labels, reduction='sum').backward()

    lstm = torch.nn.LSTM(40, 320, num_layers=3, bidirectional=True, batch_first=True)
    x = torch.rand(16, 400, 40)

    def bilstm():
        lstm.zero_grad(set_to_none=True)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=arguments.precision == 'bf16'):
            y = lstm(x)[0].sum()
        y.backward()

    theirs, ours = {'ctc_loss': [], 'bilstm': []}, {'ctc_loss': [], 'bilstm': []}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(arguments.alternations):
            result = subprocess.run([arguments.runnel, 'bench', 'speech-layers', '--json', '--device', 'cpu', '--precision', arguments.precision,
                                     '--threads', str(arguments.threads), '--out', folder],
                                    check=True, capture_output=True, text=True)
            milliseconds = {row['layer']: float(row['ms']) for row in json.loads(result.stdout)['rows']}
            for name, all_of_them in ours.items():
                all_of_them.append(milliseconds[name])
            theirs['ctc_loss'].append(median_ms(ctc))
            theirs['bilstm'].append(median_ms(bilstm))
    print(f'PyTorch {torch.__version__}, {arguments.threads} threads, medians of {arguments.alternations} alternations')
    for name in ours:
        a, b = statistics.median(ours[name]), statistics.median(theirs[name])
        print(f'{name}: Runnel {a:.2f} ms, PyTorch {b:.2f} ms, ratio {b / a:.2f}')


if __name__ == '__main__':
    main()
