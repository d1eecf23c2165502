// One image of Pathfinder, a task of Long Range Arena: two winding dashed paths among shorter ones, and two discs at
// ends of paths. The question is whether one path connects the discs.
#pragma once
#include <array>
#include <cstdint>
#include <string>

namespace runnel {

struct PathfinderImage {
  std::array<uint8_t, 1024> pixels;  // [32,32]
  std::array<uint8_t, 4> markers;    // row and column of the middle of one disc, then of the other
  int32_t connected;                 // 1: one path has both discs at its ends; 0: they are on different paths
  int32_t attempts;                  // until both paths found room
};

// Image number i of a difficulty and a seed, drawn as in the original (Linsley et al., NeurIPS 2018) with Long Range
// Arena's settings: "easy", "intermediate" or "hard", paths of 6, 9 or 14 paddles. It depends on nothing else. Throws
// Error if there is no such difficulty.
PathfinderImage pathfinder_image(const std::string& difficulty, uint64_t seed, int64_t i);

}  // namespace runnel
