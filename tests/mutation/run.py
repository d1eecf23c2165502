#!/usr/bin/env python3
"""A mutation test of the tests: applies each change of mutants.txt alone, builds, runs the tests named there, and says
whether one of them failed. Takes about an hour on two cores.

    tests/mutation/run.py                    all of them
    tests/mutation/run.py ops/ cuda/muon     those of which FILE:LINE contains one of these words
    tests/mutation/run.py --check            only whether each text occurs once, and each label is a file of tests

Changes in cuda/ are built with the preset emulator, missing barriers with thread, others with release. Run it in a work
tree of its own (git worktree add ../mutation): what it changes it puts back, but an editor would see it. Environment:
CMAKE_BUILD_PARALLEL_LEVEL, and CMAKE_CXX_COMPILER_LAUNCHER=ccache, which makes it faster.
"""
import collections, os, pathlib, re, shlex, signal, subprocess, sys, time

# ThreadSanitizer does not know OpenMP's barriers, so one thread: as in test.sh.
environments = {"thread": {"OMP_NUM_THREADS": "1", "SIMT_SEED": "3", "TSAN_OPTIONS": "halt_on_error=1 atexit_sleep_ms=0"}}
root = pathlib.Path(__file__).resolve().parents[2]


def read_list():
    mutants, file, tests = [], "", ""
    part = None  # of the mutant that is being read
    for line in (root / "tests/mutation/mutants.txt").read_text().splitlines():
        if found := re.fullmatch(r"\[(.*)\] (.*)", line):
            file, tests = found.groups()
        elif found := re.fullmatch(r"([-+])(?: (.*))?", line):
            if found[1] == "-" and part != "-":
                preset = "emulator" if file.startswith("cuda/") else "release"
                mutants.append({"file": file, "tests": tests, "preset": preset, "-": [], "+": []})
            part = found[1]
            mutants[-1][part].append(found[2] or "")
        elif found := re.fullmatch(r"(tests|preset|survives): (.*)", line):
            mutants[-1][found[1]] = found[2]
    for mutant in mutants:
        text = (root / mutant["file"]).read_text()
        before = "\n".join(mutant["-"])
        if text.count(before) != 1:
            sys.exit(f"{mutant['file']}: occurs {text.count(before)} times: {before}")
        for label in [] if mutant["tests"].startswith("-") else mutant["tests"].split():
            if not list((root / "tests").glob(f"**/test_{label}.cpp")):  # ctest would find no test, and fail
                sys.exit(f"{mutant['file']}: there are no tests called {label}")
        mutant["text"] = text
        mutant["changed"] = text.replace(before, "\n".join(mutant["+"]))
        mutant["name"] = f"{mutant['file']}:{text[:text.index(before)].count(chr(10)) + 1}"
    return mutants


def run(command, **environment):
    done = subprocess.run(command, cwd=root, env=os.environ | environment, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout


def build(preset):
    return run(["cmake", "--build", "--preset", preset, "--target", "runnel_tests"])


def failing_test(preset, tests, **environment):
    folder = "build" if preset == "release" else "build-" + preset
    chosen = shlex.split(tests) if tests.startswith("-") else ["-L", f"^({'|'.join(tests.split())})$"]
    status, output = run(["ctest", "--test-dir", folder, "--no-tests=error", "--stop-on-failure", "--timeout", "200",
                          *chosen], **environments.get(preset, {}) | environment)
    if status == 0:
        return None
    failed = re.search(r"FAILED:\s+\d+ - (.*) \(", output)
    return failed[1] if failed else output


def outcome(mutant):
    status, output = build(mutant["preset"])
    if status:
        return "DOES NOT COMPILE", "\n" + output[-3000:]
    seeds = ["", "1", "3"] if mutant["preset"] == "emulator" else [""]  # orders of threads
    for seed in seeds:
        if failed := failing_test(mutant["preset"], mutant["tests"], **({"SIMT_SEED": seed} if seed else {})):
            return "noticed", failed + (f" (seed {seed})" if seed else "")
    return "SURVIVED", mutant.get("survives", "not explained")


def main(words):
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.stdout.reconfigure(line_buffering=True)
    mutants = [m for m in read_list() if not words or any(word in m["name"] for word in words)]
    print(len(mutants), "mutants")
    files = sorted({mutant["file"] for mutant in mutants})
    if subprocess.run(["git", "status", "--porcelain", "--", *files], cwd=root, stdout=subprocess.PIPE).stdout:
        sys.exit("there are uncommitted changes in files that are to be changed")

    for preset in sorted({mutant["preset"] for mutant in mutants}):
        print(f"{preset}, without a change")
        status, output = run(["cmake", "--preset", preset])
        status, output = (status, output) if status else build(preset)
        if status:
            sys.exit(output)
        tests = {mutant["tests"] for mutant in mutants if mutant["preset"] == preset}
        labels = {label for names in tests if not names.startswith("-") for label in names.split()}
        for chosen in {names for names in tests if names.startswith("-")} | {" ".join(sorted(labels))} - {""}:
            if failed := failing_test(preset, chosen):
                sys.exit(f"fails without a change: {failed}")

    counts = collections.defaultdict(collections.Counter)
    for number, mutant in enumerate(mutants):
        start, path = time.time(), root / mutant["file"]
        try:
            path.write_text(mutant["changed"])
            result, detail = outcome(mutant)
        finally:
            path.write_text(mutant["text"])
        counts[mutant["file"].split("/")[0]][result] += 1
        print(f"{number + 1:4}  {result:9}  {mutant['name']}  ({time.time() - start:.0f} s)  {detail}")
    for folder, results in counts.items():
        print(f"{folder}/:", ", ".join(f"{count} {result}" for result, count in sorted(results.items())))
    return any(result != "noticed" for results in counts.values() for result in results)


if __name__ == "__main__":
    if sys.argv[1:] == ["--check"]:
        sys.exit(print(len(read_list()), "mutants, each text occurs once, each label is a file of tests"))
    sys.exit(main(sys.argv[1:]))
