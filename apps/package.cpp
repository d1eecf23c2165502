#include "apps/package.h"

namespace runnel {

// RUNNEL_PACKAGE_LIST, from CMakeLists.txt, is PACKAGE(lra) PACKAGE(speech) and so on.
namespace packages_of {
#define PACKAGE(name) extern const Package name;
RUNNEL_PACKAGE_LIST
#undef PACKAGE
}  // namespace packages_of

std::span<const Package* const> packages() {
#define PACKAGE(name) &packages_of::name,
  static const std::vector<const Package*> all{RUNNEL_PACKAGE_LIST};
#undef PACKAGE
  return all;
}

}  // namespace runnel
