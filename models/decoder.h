// Decoding: an autoregressive transformer one position at a time, for a batch of sequences. The function is that of
// AutoregressiveTransformer; they differ in what they keep of the positions that have been read.
#pragma once
#include <memory>
#include <vector>

#include "models/autoregressive.h"

namespace runnel {

class Decoder {
 public:
  explicit Decoder(const AutoregressiveTransformer& model) : model_(model) {}
  virtual ~Decoder() = default;
  const AutoregressiveTransformer& model() const { return model_; }

  // Reads the next token of each sequence and predicts the one after: [B] -> [B,outputs]. Throws Error if max_length
  // positions have been read.
  virtual Tensor step(const Indices& tokens) = 0;
  virtual void read(const Indices& tokens) { step(tokens); }  // the same, the prediction discarded
  // Prefill: the next tokens of each sequence, many at once where the attention can read them so: [B,L].
  virtual void read_all(const Indices& tokens);

  // How many tokens it has read: [1], on the model's device.
  virtual const Indices& position() const = 0;
  virtual int64_t sequence_bytes() const = 0;  // of memory that a sequence takes
  // A copy in which sequence i is sequence rows[i] of this one; goes on independently from here.
  virtual std::unique_ptr<Decoder> select(const std::vector<int64_t>& rows) const = 0;
  // S and Z of a layer; throws if its attention keeps something else.
  virtual AttentionState recurrent_state(int64_t layer) const;
  // Whether every step is the same device work, so that it can be captured as a CUDA graph.
  virtual bool is_replayable() const = 0;

 protected:
  static void check_rows(const std::vector<int64_t>& rows, int64_t batch);  // throws if one of them is not in it
  const AutoregressiveTransformer& model_;
};

// Whether the model's attention has an incremental form.
bool has_incremental_form(const AutoregressiveTransformer& model);
// Whether that form keeps S and Z, whose size does not grow with the positions that have been read.
bool has_recurrent_state(const AutoregressiveTransformer& model);
// Whether a decoder can read any number of positions: it keeps a memory of constant size, and positions have no code.
bool is_unbounded(const AutoregressiveTransformer& model);

// With the attention's decode state (S and Z, a KV cache); throws if it has none. S, if it is kept, is kept in
// `state_precision`, f32 or bf16. The model must outlive the decoder; its linear layers are copied, packed for products
// with few rows.
std::unique_ptr<Decoder> incremental_decoder(const AutoregressiveTransformer& model, int64_t batch,
                                             Precision state_precision = Precision::f32);
// Recomputes the whole prefix at each step: O(L^2) positions per sequence. It decodes any kind of attention, and is
// the methods called softmax and lsh in the paper's tables. The model must outlive the decoder.
std::unique_ptr<Decoder> uncached_decoder(const AutoregressiveTransformer& model, int64_t batch);
// Incremental where the model's attention has that form, else uncached.
std::unique_ptr<Decoder> make_decoder(const AutoregressiveTransformer& model, int64_t batch);

}  // namespace runnel
