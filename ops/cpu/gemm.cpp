// oneDNN plans a product for its sizes, types and layouts, and compiles it; planning costs more than a small product,
// so each thread keeps the plans that it has made.
#include "ops/cpu/gemm.h"

#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <tuple>
#include <unordered_map>

#include "engine/check.h"
#include "ops/cpu/loops.h"
#include "ops/kernels/linear.h"
#include "ops/numerics.h"

namespace runnel::onednn {
namespace {

using dnnl::memory;
using dnnl::primitive_attr;

// Within the instruction set that RUNNEL_INSTRUCTION_SET may have named.
void restrict_instructions() {
#if defined(__x86_64__)
  if (!std::getenv("RUNNEL_INSTRUCTION_SET")) return;
  switch (instruction_set()) {
    case InstructionSet::baseline:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_sse41);
      break;
    case InstructionSet::avx2:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx2);
      break;
    case InstructionSet::avx512:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core);
      break;
    case InstructionSet::avx512_bf16:
      dnnl_set_max_cpu_isa(dnnl_cpu_isa_avx512_core_bf16);
      break;
    case InstructionSet::amx:
    case InstructionSet::dotprod:
      break;
  }
#endif
}

const dnnl::engine& engine() {
  static const dnnl::engine the_engine = [] {
    restrict_instructions();
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return the_engine;
}

// While it lives, oneDNN plans and computes the calling thread's products on that thread alone.
class Alone {
 public:
  explicit Alone(bool wanted = true) : threads_(omp_get_max_threads()) {
    if (wanted) omp_set_num_threads(1);
  }
  ~Alone() { omp_set_num_threads(threads_); }
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;

 private:
  int threads_;
};

memory::data_type operand_type() {
  return precision() == Precision::bf16 ? memory::data_type::bf16 : memory::data_type::f32;
}

// Row-major, or the transpose of a row-major matrix.
memory::desc matrix(int64_t rows, int64_t columns, memory::data_type type, bool transposed = false) {
  return {{rows, columns}, type, transposed ? memory::format_tag::ba : memory::format_tag::ab};
}

dnnl::matmul::primitive_desc plan(const memory::desc& a, const memory::desc& b, const memory::desc& c, bool add) {
  primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (add) {
    dnnl::post_ops after;
    after.append_sum(1);
    attributes.set_post_ops(after);
  }
#if DNNL_VERSION_MAJOR >= 3
  return {engine(), a, b, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, c), attributes, engine()};
#endif
}

// A product that is ready to run; only the addresses are missing.
class Product {
 public:
  explicit Product(const dnnl::matmul::primitive_desc& plan)
      : matmul_(plan),
        stream_(engine()),
        a_(plan.src_desc(), engine(), nullptr),
        b_(plan.weights_desc(), engine(), nullptr),
        c_(plan.dst_desc(), engine(), nullptr),
        scratch_(plan.scratchpad_desc(), engine()),
        arguments_{{DNNL_ARG_SRC, a_}, {DNNL_ARG_WEIGHTS, b_}, {DNNL_ARG_DST, c_}, {DNNL_ARG_SCRATCHPAD, scratch_}} {}

  void run(float* c, void* a, void* b) {
    a_.set_data_handle(a);
    b_.set_data_handle(b);
    c_.set_data_handle(c);
    matmul_.execute(stream_, arguments_);
  }

 private:
  dnnl::matmul matmul_;
  dnnl::stream stream_;
  memory a_, b_, c_, scratch_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

void gemm(float* c, const float* a, const float* b, int64_t m, int64_t n, int64_t k, bool transpose_a,
          bool transpose_b) {
  engine();  // which restricts dnnl_sgemm, too
  const Alone alone(m * n * k < parallel_from_products);
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1, a,
                                          transpose_a ? m : k, b, transpose_b ? k : n, 0, c, n);
  check(status == dnnl_success, "matrix product of ", m, " x ", k, " and ", k, " x ", n, ": oneDNN failed with status ",
        int{status});
}

Operand::Operand(const float* rows, int64_t n) : data_(const_cast<float*>(rows)) {
  if (precision() != Precision::bf16) return;
  rounded_ = std::make_unique<Storage>(static_cast<size_t>(n) * sizeof(uint16_t), Device::cpu);
  data_ = rounded_->data();
  const Alone alone;
  ON_CPU(round_to_bf16(static_cast<uint16_t*>(data_), rows, n));
}

struct PackedMatrix::Layout {
  int64_t k, n;
  memory::desc desc;
  Storage storage;
};

namespace {

// How to bring a matrix into the layout that is best for it.
struct Packing {
  memory::desc plain, packed;
  dnnl::reorder reorder;

  Packing(int64_t k, int64_t n, bool transposed)
      : plain(matrix(k, n, memory::data_type::f32, transposed)),
        packed(best_layout(k, n)),
        reorder(dnnl::reorder::primitive_desc(engine(), plain, engine(), packed)) {}

  static memory::desc best_layout(int64_t k, int64_t n) {
    constexpr int64_t typical_rows = 128;
    const memory::desc any({k, n}, operand_type(), memory::format_tag::any);
    return plan(matrix(typical_rows, k, operand_type()), any, matrix(typical_rows, n, memory::data_type::f32), false)
        .weights_desc();
  }
};

}  // namespace

PackedMatrix::PackedMatrix(const float* b, int64_t k, int64_t n, bool transposed) {
  const Alone alone(k * n < parallel_from);
  static thread_local std::map<std::tuple<Precision, int64_t, int64_t, bool>, Packing> packings;
  const auto key = std::make_tuple(precision(), k, n, transposed);
  auto packing = packings.find(key);
  if (packing == packings.end()) packing = packings.emplace(key, Packing(k, n, transposed)).first;
  Packing& how = packing->second;
  layout_.reset(new Layout{k, n, how.packed, {how.packed.get_size(), Device::cpu}});
  memory plain(how.plain, engine(), const_cast<float*>(b)), packed(how.packed, engine(), layout_->storage.data());
  dnnl::stream stream(engine());
  how.reorder.execute(stream, plain, packed);
}

PackedMatrix::~PackedMatrix() = default;
PackedMatrix::PackedMatrix(PackedMatrix&&) noexcept = default;

void PackedMatrix::multiply(float* c, const Operand& a, int64_t m, bool add) const {
  const auto& [k, n, desc, storage] = *layout_;
  const Alone alone;
  static thread_local std::map<std::tuple<Precision, int64_t, int64_t, int64_t, bool>, Product> products;
  const auto key = std::make_tuple(precision(), m, n, k, add);
  auto product = products.find(key);
  if (product == products.end())
    product =
        products
            .emplace(key, Product(plan(matrix(m, k, operand_type()), desc, matrix(m, n, memory::data_type::f32), add)))
            .first;
  product->second.run(c, a.data(), storage.data());
}

void transposed_product(float* c, const Operand& a, const Operand& b, int64_t rows, int64_t m, int64_t n, bool add) {
  const Alone alone;
  static thread_local std::map<std::tuple<Precision, int64_t, int64_t, int64_t, bool>, Product> products;
  const auto key = std::make_tuple(precision(), rows, m, n, add);
  auto product = products.find(key);
  if (product == products.end())
    product = products
                  .emplace(key, Product(plan(matrix(m, rows, operand_type(), true), matrix(rows, n, operand_type()),
                                             matrix(m, n, memory::data_type::f32), add)))
                  .first;
  product->second.run(c, a.data(), b.data());
}

}  // namespace runnel::onednn
