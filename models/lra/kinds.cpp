// The kinds of attention of Long Range Arena, in the order of --help.
#include "models/attention_kinds.h"

namespace runnel {

// clang-format off
#define KINDS(X) X(performer) X(local) X(sparse) X(longformer) X(bigbird) X(linformer) X(sinkhorn) X(synthesizer)
// clang-format on

namespace kinds {
#define DECLARE(kind) extern const AttentionKind kind;
KINDS(DECLARE)
}  // namespace kinds

namespace packages {
std::vector<const AttentionKind*> lra_kinds();
std::vector<const AttentionKind*> lra_kinds() {
#define ADDRESS(kind) &kinds::kind,
  return {KINDS(ADDRESS)};
}
}  // namespace packages

}  // namespace runnel
