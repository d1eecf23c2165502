// The copy task of the paper (figure 2), trained with the library and nothing else: no command line, no run folder.
// Then the model writes a copy, one token at a time, as a recurrent network.
//
//   example_train_copy [updates]
#include <runnel/datasets/copy_task.h>
#include <runnel/engine/tape.h>
#include <runnel/models/decoder.h>
#include <runnel/models/optimizer.h>
#include <runnel/ops/losses.h>
#include <runnel/ops/reductions.h>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

using namespace runnel;

int main(int argc, char** argv) {
  const int updates = argc > 1 ? std::stoi(argv[1]) : 2000;
  const CopyTask task{.length = 32};
  const Key seed{0};  // all random numbers are drawn from a key, so two runs give the same bytes
  const AutoregressiveConfig config{
      .encoder = {.layers = 2, .heads = 4, .head_dim = 16, .feed_forward = 256, .dropout = 0, .attention = {"linear"}},
      .vocabulary = task.vocabulary(),
      .outputs = task.vocabulary(),
      .max_length = task.length};
  const AutoregressiveTransformer model(config, seed.fold(0));
  Adam optimizer(model.parameters(), {.lr = 2e-3, .rectify = true});

  for (int update = 1; update <= updates; ++update) {
    const CopyBatch batch = task.batch(seed.fold(1).fold(static_cast<uint64_t>(update)), 32);
    Tape tape;
    const Tensor loss = cross_entropy(model(batch.tokens), batch.targets, batch.mask);
    optimizer.step(tape.backward(loss));
    optimizer.set_lr(2e-3 * (1 - static_cast<double>(update) / updates));
    if (update % 200 == 0) std::printf("update %4d  loss %.4f nats\n", update, loss.item());
  }

  const CopyBatch test = task.batch(seed.fold(2), 500);
  const std::vector<int32_t> guess = argmax(model(test.tokens)).to_vector();  // without a tape, ops only compute
  int right = 0, counted = 0;
  for (size_t i = 0; i < guess.size(); ++i)
    if (test.mask.data()[i] > 0) ++counted, right += guess[i] == test.targets.data()[i];
  std::printf("accuracy on 500 new sequences: %.2f%%\n", 100.0 * right / counted);

  // One sequence, read up to the separator, 0, and then continued. All that the decoder keeps of the past is S and Z.
  const auto decoder = incremental_decoder(model, 1);
  std::vector<int32_t> x = task.batch(seed.fold(3), 1).tokens.to_vector();
  const size_t n = static_cast<size_t>(std::find(x.begin(), x.end(), 0) - x.begin());
  for (size_t i = 0; i < 2 * n; ++i) {
    const int32_t next = argmax(decoder->step(Indices(Shape{1}, {x[i]}))).to_vector()[0];
    if (i >= n) x[i + 1] = next;
  }
  for (size_t i = 0; i <= 2 * n; ++i) std::putchar(x[i] ? 'a' + x[i] - 1 : '.');
  std::putchar('\n');
  return right >= 0.99 * counted ? 0 : 1;
}
