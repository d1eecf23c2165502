// How threads wait for each other.
#pragma once
#include <string>

namespace runnel {

// The path of this program's file; "" if the system does not say.
std::string program_path();

// OpenMP lets threads that wait spin for milliseconds, on cores that the threads they wait for may need: beside other
// programs a run can then take tens of times as long (docs/results.md). If they sleep at once, each of the thousands of
// short parallel loops of an image waits for the system to wake them. A short spin is as fast as a long one where cores
// are free, and as good as sleep where they are not. OpenMP reads its variables when the program is loaded, so this
// sets them and starts the program again in its place, unless the user has set one of them.
void spin_shortly(char** argv);

}  // namespace runnel
