// The one function of zlib that the library's checkpoints need, for Emscripten, which has no zlib of its own.
#pragma once
#include <cstddef>

using Bytef = unsigned char;
using uLong = unsigned long;

// CRC-32 (ISO 3309) of all bytes so far.
inline uLong crc32_z(uLong crc, const Bytef* bytes, size_t count) {
  if (!bytes) return 0;
  crc = ~crc & 0xffffffff;
  for (size_t i = 0; i < count; ++i) {
    crc ^= bytes[i];
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc & 0xffffffff;
}
