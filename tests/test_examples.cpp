// The programs in examples/, run as a user does: what they print and write, and their exit status.
#ifdef RUNNEL_EXAMPLES  // the folder of the built programs; not with ThreadSanitizer
#include "tests/mnist.h"

#if RUNNEL_WITH_ADDRESS_SANITIZER
constexpr bool slow = true;
#else
constexpr bool slow = false;
#endif

using namespace runnel::test;

namespace {

struct Example : Sandbox {
  explicit Example(const std::string& name) {
    executable = RUNNEL_EXAMPLES "/example_" + name;
    setenv("OMP_NUM_THREADS", "1", 1);  // other tests run beside this one: waiting for a second thread could take long
  }
  ~Example() { unsetenv("OMP_NUM_THREADS"); }
  bool exists() const {
    const bool found = fs::exists(executable);
    if (!found) MESSAGE("skipped: 1 test, there is no " << executable);
    return found;
  }
};

}  // namespace

TEST_CASE("examples: custom_op's gradient is right and its classifier learns") {
  const Example example("custom_op");
  if (!example.exists()) return;
  const Result result = succeed(example, "");
  CHECK(contains(result.out, "gradient: "));
  CHECK(contains(result.out, "points classified correctly"));
}

TEST_CASE("examples: mlp tells two spirals apart and draws them") {
  const Example example("mlp");
  if (!example.exists()) return;
  const Result result = succeed(example, "spirals.png");
  CHECK(contains(result.out, "step 1000  loss 0.0"));
  CHECK(read(example.folder / "spirals.png").starts_with("\x89PNG"));
}

TEST_CASE("examples: attention_from_ops has the numbers and gradients of the fused op") {
  const Example example("attention_from_ops");
  if (!example.exists()) return;
  const Result result = succeed(example, "");
  for (const char* form : {"\nlinear_attention ", "\nmasked products ", "\nrunning sum of states "})
    CHECK(contains(result.out, form));
}

TEST_CASE("examples: convolution learns digits, and says what it needs") {
  const Example example("convolution");
  if (!example.exists()) return;
  CHECK(contains(example.run("").err, "usage: example_convolution"));
  CHECK(contains(example.run("nowhere").err, "nowhere"));
  write_mnist(example.folder / "data", 128, 64);
  const Result result = example.run("data 1");
  CHECK(result.status == 1);  // so few drawn digits do not suffice
  CHECK(contains(result.out, "epoch 1,  0.0%  loss "));
  CHECK(contains(result.out, "% of the test images are classified correctly"));
}

TEST_CASE("examples: train_copy learns to copy, and says so if it does not") {
  const Example example("train_copy");
  if (!example.exists()) return;
  const Result few = example.run("2");
  CHECK(few.status == 1);
  CHECK(contains(few.out, "accuracy on 500 new sequences: "));
  if (slow) return;
  const Result result = succeed(example, "");
  CHECK(contains(result.out, "update 2000  loss 0.0"));
  const std::string copied = split(result.out, '\n').back();
  CHECK(copied.substr(0, copied.find('.')) == copied.substr(copied.find('.') + 1));
}

TEST_CASE("examples: one_file learns to copy, and says so if it does not") {
  const Example example("one_file");
  if (!example.exists()) return;
  const Result few = example.run("3 2");  // seed, updates
  CHECK(few.status == 1);
  CHECK(contains(few.out, "by backward"));
  CHECK(contains(few.out, "copied correctly"));
  if (slow) return;
  const Result result = succeed(example, "");
  CHECK(contains(result.out, "update 5000   loss 0.0"));
}

TEST_CASE("examples: load_checkpoint draws an image with a trained model") {
  const Example example("load_checkpoint");
  if (!example.exists() || !has_sources()) return;
  const std::string run = (source_dir() / "tests/golden/runs/mnist_linear").string();
  const Result result = succeed(example, run + " image.png 7");
  CHECK(contains(result.out, "task mnist"));
  const std::string image = read(example.folder / "image.png");
  CHECK(image.starts_with("\x89PNG"));
  succeed(example, run + " again.png 7");
  CHECK(read(example.folder / "again.png") == image);
  const Result missing = example.run("nothing image.png");
  CHECK(missing.status == 1);
  CHECK(contains(missing.err, "nothing"));
}
#endif
