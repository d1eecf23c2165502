// Text from outside: how it is printed, and whether it is UTF-8; files of lines.
#include "engine/text.h"

#include <fcntl.h>
#include <unistd.h>

#include "datasets/files.h"
#include "tests/check.h"
#include "tests/folder.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

TEST_CASE("text: shown() leaves what is printable, and escapes what would act on a terminal") {
  CHECK(shown("a b/c\\n \"d\" é 漢 😀") == "a b/c\\n \"d\" é 漢 😀");
  CHECK(shown("a\nb\rc\td") == "a\\nb\\rc\\td");
  CHECK(shown("a\nb\rc\td", Lines::kept) == "a\nb\\rc\td");
  CHECK(shown("\x1b]0;title\a\x7f") == "\\x1b]0;title\\x07\\x7f");
  CHECK(shown("\xc2\x9b") == "\\xc2\\x9b");  // CSI, as one character
  CHECK(shown("\xe2\x80\xae"
              "cod.exe") ==
        "\\xe2\\x80\\xae"
        "cod.exe");  // right to left
  CHECK(shown("caf\xe9") == "caf\\xe9");
  CHECK(shown(shown("\x1b\n\xff")) == shown("\x1b\n\xff"));
  CHECK(shown(std::string_view("\0", 1)) == "\\x00");
  CHECK(excerpt(std::string(59, 'x') + "é") == std::string(59, 'x') + "...");
}

TEST_CASE("text: UTF-8 has no overlong forms, no surrogates and nothing above U+10FFFF") {
  for (const char* good : {"", "a", "\xc2\x80", "\xe0\xa0\x80", "\xed\x9f\xbf", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"})
    CHECK(is_utf8(good));
  for (const char* bad : {"\x80", "\xc1\xbf", "\xc3", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                          "\xf4\x90\x80\x80", "\xf8", "\xe2\x82", "a\xff"})
    CHECK_FALSE(is_utf8(bad));
  check_fails([] { check_text("caf\xe9", "list:3"); }, "list:3: \"caf\\xe9\" is not UTF-8");
  check_fails([] { fail("no class ", "a\x1b\nb"); }, "no class a\\x1b\\nb");
}

TEST_CASE("files: lines end in both ways, a byte order mark is left out, and their length is bounded") {
  const Sandbox box;
  const fs::path path = box.folder / "lines";
  const auto lines = [&](const std::string& content) {
    write_bytes(path, content);
    LineFile file(path);
    std::vector<std::string> all;
    for (std::string line; file.next(line);) all.push_back(line);
    return all;
  };
  using All = std::vector<std::string>;
  CHECK(lines("") == All{});
  CHECK(lines("\n") == All{""});
  CHECK(lines("\xef\xbb\xbf"
              "a\r\n\xef\xbb\xbf"
              "b") == All{"a",
                          "\xef\xbb\xbf"
                          "b"});
  const std::string is_long(100'000, 'x');  // more than a block
  CHECK(lines(is_long + "\n" + is_long) == All{is_long, is_long});
  check_fails([&] { lines("a\n" + std::string((16 << 20) + 1, 'x') + "\nb\n"); }, "line 2 is longer than");

  write_bytes(path, "a\ncaf\xe9\n");
  LineFile file(path);
  std::string line;
  CHECK(file.next_text(line));
  check_fails([&] { file.next_text(line); }, path.string() + ":2: \"caf\\xe9\" is not UTF-8");

  const int folder = open(box.folder.c_str(), O_RDONLY);
  check_fails([&] { LineFile("standard input", folder).next(line); }, "standard input: cannot be read after line 0");
  close(folder);
}

}  // namespace
}  // namespace runnel::test
