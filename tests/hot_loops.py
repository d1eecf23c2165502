#!/usr/bin/env python3
"""Innermost loops of compiled kernels: how many instructions, and how many multiplications of vectors among them.

hot_loops.py OBJDUMP OBJECT [PATTERN]: for each function whose name has PATTERN, its innermost loop with the most of them.
"""
import re
import subprocess
import sys

if len(sys.argv) not in (3, 4):
    sys.exit(__doc__)
objdump, object_file, pattern = (sys.argv + [''])[1:4]
text = subprocess.run([objdump, '-d', '--demangle', '--no-show-raw-insn', object_file], capture_output=True, text=True,
                      check=True).stdout
multiplies = re.compile(r'vfn?m(add|sub)\w*ps|vpmaddwd|vpdpbusd|f?ml[as]\s|mul\s+v|sdot|smlal')
for function in re.split(r'\n(?=[0-9a-f]+ <)', text):
    name = re.match(r'[0-9a-f]+ <(.*)>:', function)
    if not name or pattern not in name[1]:
        continue
    code = [(int(at, 16), what) for at, what in re.findall(r'^ *([0-9a-f]+):\t(.*)$', function, re.M)]
    index = {at: i for i, (at, _) in enumerate(code)}
    loops = []
    for end, (at, what) in enumerate(code):
        target = re.match(r'(?:j\w+|b\.?\w*|cbn?z|tbn?z)\s+(?:.*, ?)?(?:0x)?([0-9a-f]+) <', what)
        if target and int(target[1], 16) <= at and int(target[1], 16) in index:
            loops.append((index[int(target[1], 16)], end))
    innermost = [a for a in loops if not any(a[0] <= b[0] and b[1] <= a[1] and a != b for b in loops)]
    counts = [(sum(bool(multiplies.match(what)) for _, what in code[first:last + 1]), last + 1 - first)
              for first, last in innermost]
    if counts and max(counts)[0] > 0:
        most = max(counts)
        print(f'{most[0]:4} multiplications, {most[1]:4} instructions  {name[1][:100]}')
