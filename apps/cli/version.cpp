#include "apps/cli/version.h"

namespace runnel {

std::string program_text() {
  return std::string("runnel ") + build_info.version + (*build_info.commit ? ", commit " : "") + build_info.commit;
}

}  // namespace runnel
