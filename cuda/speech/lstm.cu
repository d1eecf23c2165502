// Long short-term memory: ops/cpu/speech/lstm.cpp has the equations. Each step is a product by cuBLAS for each
// direction and one kernel for all that follows it. A training step is captured as a graph (engine/replay.h), so
// launches cost little.
#include <cmath>

#include "cuda/cublas.h"
#include "cuda/launch.h"
#include "cuda/temporary.h"
#include "ops/kernels/speech.h"

namespace runnel::cuda {
namespace {

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// A thread's work: number j of sequence b in direction d.
struct Place {
  int64_t d, b, j, state, length, frames;
  __device__ Place(int64_t i, const int32_t* lengths, const LstmSizes& s)
      : d(i / s.width / s.batch),
        b(i / s.width % s.batch),
        j(i % s.width),
        state(i),
        length(lengths ? lengths[b] : s.frames),
        frames(s.frames) {}
  __device__ int64_t frame(int64_t step) const { return b * frames + (d == 0 ? step : length - 1 - step); }
  __device__ int64_t output(int64_t step, const LstmSizes& s) const {
    return (frame(step) * s.directions + d) * s.width + j;
  }
  __device__ int64_t kept(int64_t step, const LstmSizes& s) const {
    return (d * s.batch * s.frames + frame(step)) * s.kept() + j;
  }
};

// h and c are those before the step, and become those after it. products [D,B,4H]: of h and the recurrent weights.
// Launch: over(D B H). Owns: a number of h and c, and of y and kept at this step. Shared: none.
__global__ void lstm_forward_kernel(float* y, float* h, float* c, float* kept, LstmInputs in, const float* products,
                                    const int32_t* lengths, int64_t step, LstmSizes s) {
  const int64_t n = s.width;
  for (int64_t i = first_element(); i < s.directions * s.batch * n; i += element_step()) {
    const Place at(i, lengths, s);
    if (step >= at.length) continue;
    const float* const z = (at.d == 0 ? in.gates[0] : in.gates[1]) + at.frame(step) * 4 * n + at.j;
    const float* const r = products + (at.d * s.batch + at.b) * 4 * n + at.j;
    const float input = sigmoid(z[0] + r[0]), forget = sigmoid(z[n] + r[n]), g = tanhf(z[2 * n] + r[2 * n]);
    const float output = sigmoid(z[3 * n] + r[3 * n]), next = forget * c[i] + input * g;
    c[i] = next;
    h[i] = y[at.output(step, s)] = output * tanhf(next);
    if (!kept) continue;
    float* const to = kept + at.kept(step, s);
    to[0] = input;
    to[n] = forget;
    to[2 * n] = g;
    to[3 * n] = output;
    to[4 * n] = next;
  }
}

// dh [D,B,H]: the part that comes from the next step, where the sequence has one. dz [D,B,4H]. dc is that after the
// step, and becomes that before it. Launch: over(D B H). Owns: a number of dc, and four of dz and of the gates'
// gradient at this step. Shared: none.
__global__ void lstm_backward_kernel(LstmGradients to, float* dz, float* dc, const float* dh, const float* dy,
                                     const float* dh1, const float* kept, const float* c0, const int32_t* lengths,
                                     int64_t step, LstmSizes s) {
  const int64_t n = s.width;
  for (int64_t i = first_element(); i < s.directions * s.batch * n; i += element_step()) {
    const Place at(i, lengths, s);
    float* const own = dz + (at.d * s.batch + at.b) * 4 * n + at.j;
    if (step >= at.length) {
      for (int64_t gate = 0; gate < 4; ++gate) own[gate * n] = 0;
      continue;
    }
    const float* const of = kept + at.kept(step, s);
    const float input = of[0], forget = of[n], g = of[2 * n], output = of[3 * n], tc = tanhf(of[4 * n]);
    const float before = step > 0 ? kept[at.kept(step - 1, s) + 4 * n] : c0 ? c0[i] : 0;
    const float later = step + 1 < at.length ? dh[i] : dh1 ? dh1[i] : 0;
    const float dhi = dy[at.output(step, s)] + later, d = dc[i] + dhi * output * (1 - tc * tc);
    dc[i] = d * forget;
    own[0] = d * g * input * (1 - input);
    own[n] = d * before * forget * (1 - forget);
    own[2 * n] = d * input * (1 - g * g);
    own[3 * n] = dhi * tc * output * (1 - output);
    float* const gradient = (at.d == 0 ? to.gates[0] : to.gates[1]) + at.frame(step) * 4 * n + at.j;
    for (int64_t gate = 0; gate < 4; ++gate) gradient[gate * n] = own[gate * n];
  }
}

// Launch: over(D B H). Owns: dh0[i]. Shared: none.
__global__ void lstm_first_kernel(float* dh0, const float* dh, const float* dh1, const int32_t* lengths, LstmSizes s) {
  for (int64_t i = first_element(); i < s.directions * s.batch * s.width; i += element_step())
    dh0[i] = Place(i, lengths, s).length > 0 ? dh[i] : dh1 ? dh1[i] : 0;
}

// Launch: over(B T H). Owns: h[i]. Shared: none.
__global__ void lstm_previous_kernel(float* h, const float* y, const float* h0, const int32_t* lengths,
                                     int64_t direction, LstmSizes s) {
  const int64_t n = s.width;
  for (int64_t i = first_element(); i < s.batch * s.frames * n; i += element_step()) {
    const int64_t b = i / n / s.frames, t = i / n % s.frames, length = lengths ? lengths[b] : s.frames;
    const int64_t before = direction == 0 ? t - 1 : t + 1;
    float x = 0;
    if (t < length && before >= 0 && before < length)
      x = y[((b * s.frames + before) * s.directions + direction) * n + i % n];
    else if (t < length && h0)
      x = h0[(direction * s.batch + b) * n + i % n];
    h[i] = x;
  }
}

void copy_or_clear(float* to, const float* from, int64_t n) {
  const auto bytes = static_cast<size_t>(n) * sizeof(float);
  if (from)
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream()), "lstm");
  else
    check_cuda(cudaMemsetAsync(to, 0, bytes, stream()), "lstm");
}

}  // namespace

void lstm_forward(float* y, float* h1, float* c1, float* kept, LstmInputs in, const float* h0, const float* c0,
                  const int32_t* lengths, LstmSizes s) {
  const int64_t states = s.batch * s.width, all = s.directions * states;
  const Temporary<float> products(4 * all);
  copy_or_clear(h1, h0, all);
  copy_or_clear(c1, c0, all);
  copy_or_clear(y, nullptr, s.frames * all);
  if (all == 0) return;
  for (int64_t step = 0; step < s.frames; ++step) {
    for (int64_t d = 0; d < s.directions; ++d)
      product(products.data() + d * 4 * states, h1 + d * states, in.w[d], s.batch, 4 * s.width, s.width, false, true);
    launch("lstm_forward", lstm_forward_kernel, over(all), y, h1, c1, kept, in, products.data(), lengths, step, s);
  }
}

void lstm_backward(LstmGradients to, float* dh0, float* dc0, const float* dy, const float* dh1, const float* dc1,
                   const float* kept, LstmInputs in, const float* c0, const int32_t* lengths, LstmSizes s) {
  const int64_t states = s.batch * s.width, all = s.directions * states;
  const Temporary<float> dz(4 * all), dh(all), own_dc(dc0 ? 0 : all);
  float* const dc = dc0 ? dc0 : own_dc.data();
  for (int64_t d = 0; d < s.directions; ++d) copy_or_clear(to.gates[d], nullptr, s.frames * 4 * states);
  if (all == 0) return;
  copy_or_clear(dc, dc1, all);
  for (int64_t step = s.frames - 1; step >= 0; --step) {
    launch("lstm_backward", lstm_backward_kernel, over(all), to, dz.data(), dc, dh.data(), dy, dh1, kept, c0, lengths,
           step, s);
    for (int64_t d = 0; d < s.directions; ++d)
      product(dh.data() + d * states, dz.data() + d * 4 * states, in.w[d], s.batch, s.width, 4 * s.width, false, false);
  }
  if (dh0) launch("lstm_backward", lstm_first_kernel, over(all), dh0, dh.data(), dh1, lengths, s);
}

void lstm_previous(float* h, const float* y, const float* h0, const int32_t* lengths, int64_t direction, LstmSizes s) {
  launch("lstm_previous", lstm_previous_kernel, over(s.batch * s.frames * s.width), h, y, h0, lengths, direction, s);
}

}  // namespace runnel::cuda
