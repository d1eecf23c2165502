// Speech recognition by connectionist temporal classification (section 4.3 of the paper).
#include "apps/package.h"
#include "apps/speech/speech.h"

namespace runnel::packages_of {

extern const Package speech;
const Package speech{.add_commands = add_speech,
                     .add_benchmarks =
                         [](Subcommand bench) {
                           add_speech_bench(bench);
                           add_speech_layers(bench);
                         },
                     .kernels = speech_kernels};

}  // namespace runnel::packages_of
