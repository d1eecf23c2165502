// runnel lra image: CIFAR-10's photographs in grey, one byte after another, in ten classes (Long Range Arena's Image).
#include "apps/lra/classification.h"
#include "datasets/files.h"
#include "datasets/lra/image_sequences.h"

namespace runnel {

const ClassificationDataset tasks::image{
    .name = "image",
    .help = "photographs classified as sequences of grey pixels (Long Range Arena)",
    .data_help = "folder with CIFAR-10 (default: $RUNNEL_DATA or ./data)",
    .vocabulary = 257,
    .side = 32,
    .load = [](const ClassificationSettings& settings, const WorkDone&) { return load_grey_cifar10(settings.data); }};

}  // namespace runnel
