// What was published of Long Range Arena. Accuracies are in per cent, of ListOps, Text, Retrieval, Image and
// Pathfinder, in this order; 0 where there is none.
#pragma once
#include <array>
#include <string>

namespace runnel {

using Accuracies = std::array<double, 5>;

struct PublishedResults {
  const char *kind, *name;   // here, and in Long Range Arena
  Accuracies arena;          // Tay et al. 2021, table 1: sizes of models differ between systems
  Accuracies flash;          // Dao et al. 2022, table 3
  Accuracies skyformer;      // Chen et al. 2021, table 1: two layers, 64 wide
  Accuracies nystromformer;  // Xiong et al. 2021, table 1: two layers, 64 wide
  // Byte-level text of 1K, 2K, 3K and 4K on 16 TPU v3, batch 32 (Tay et al. 2021, table 2).
  std::array<double, 4> steps_per_second, gigabytes;
};

inline constexpr const char* arena_tasks[] = {"listops", "text", "retrieval", "image", "pathfinder"};

inline constexpr PublishedResults published_results[] = {
    {"softmax",
     "Transformer",
     {36.37, 64.27, 57.46, 42.44, 71.40},
     {36.0, 63.6, 81.6, 42.3, 72.7},
     {38.37, 61.95, 80.69, 40.57, 65.26},
     {37.10, 65.02, 79.35, 38.20, 74.16},
     {8.1, 4.9, 2.3, 1.4},
     {.85, 2.65, 5.51, 9.48}},
    {"local",
     "Local Attention",
     {15.82, 52.98, 53.39, 41.46, 66.63},
     {36.1, 60.2, 76.7, 40.6, 66.6},
     {},
     {},
     {9.2, 8.4, 7.4, 7.4},
     {.42, .76, 1.06, 1.37}},
    {"sparse", "Sparse Transformer", {17.07, 63.58, 59.59, 44.24, 71.71}, {}, {}, {}, {}, {}},
    {"longformer", "Longformer", {35.63, 62.85, 56.89, 42.22, 69.71}, {}, {}, {}, {}, {}},
    {"linformer",
     "Linformer",
     {35.70, 53.94, 52.27, 38.56, 76.34},
     {35.6, 55.9, 77.7, 37.8, 67.6},
     {37.45, 58.93, 78.19, 37.96, 60.93},
     {37.25, 55.91, 79.37, 37.84, 67.60},
     {9.3, 9.1, 8.5, 7.7},
     {.37, .55, .99, .99}},
    {"lsh",
     "Reformer",
     {37.27, 56.10, 53.40, 38.07, 68.50},
     {36.5, 63.8, 78.5, 39.6, 69.4},
     {37.68, 62.93, 78.99, 48.87, 66.49},
     {19.05, 64.88, 78.64, 43.29, 69.36},
     {4.4, 2.2, 1.5, 1.1},
     {.48, .99, 1.53, 2.28}},
    {"sinkhorn",
     "Sinkhorn Transformer",
     {33.67, 61.20, 53.83, 41.23, 67.45},
     {},
     {},
     {},
     {9.1, 7.9, 6.6, 5.3},
     {.47, .83, 1.13, 1.48}},
    {"synthesizer",
     "Synthesizer",
     {36.99, 61.68, 54.67, 41.61, 69.45},
     {},
     {},
     {},
     {8.7, 5.7, 6.6, 1.9},
     {.65, 1.98, 4.09, 6.99}},
    {"bigbird",
     "BigBird",
     {36.05, 64.02, 59.29, 40.83, 74.87},
     {},
     {39.25, 63.86, 80.28, 43.16, 68.72},
     {},
     {7.4, 3.9, 2.7, 1.5},
     {.77, 1.49, 2.18, 2.88}},
    {"linear",
     "Linear Transformer",
     {16.13, 65.90, 53.09, 42.34, 75.30},
     {38.8, 63.2, 80.7, 42.6, 72.5},
     {},
     {},
     {9.1, 9.3, 8.6, 7.8},
     {.37, .57, .80, 1.03}},
    {"performer",
     "Performer",
     {18.01, 65.40, 53.82, 42.77, 77.05},
     {36.8, 63.6, 82.2, 42.1, 69.9},
     {38.02, 64.19, 80.04, 41.43, 66.30},
     {18.80, 63.81, 78.62, 37.07, 69.87},
     {9.5, 9.4, 8.7, 8.0},
     {.37, .59, .82, 1.06}}};

}  // namespace runnel
