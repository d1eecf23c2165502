// report.html: read as a browser would, by a small parser.
#include "apps/training/report.h"

#include <map>
#include <set>

#include "apps/plots/pictures.h"
#include "tests/check.h"
#include "tests/program.h"

namespace runnel::test {
namespace {

struct Element {
  std::string name;
  std::map<std::string, std::string> attributes;
};

std::string unescaped(std::string text) {
  const std::pair<std::string, std::string> entities[] = {
      {"&lt;", "<"}, {"&gt;", ">"}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [entity, character] : entities)
    for (size_t at = 0; (at = text.find(entity, at)) != std::string::npos; at += character.size())
      text.replace(at, entity.size(), character);
  return text;
}

struct Page {
  std::vector<Element> elements;
  std::vector<std::string> texts;  // between tags, unescaped, without what is blank
};

// Requires that elements are closed in order and that every < begins a tag.
Page parse(const std::string& html) {
  const std::set<std::string> empty{"meta", "img"};
  Page page;
  std::vector<std::string> open;
  for (size_t at = 0; at < html.size();) {
    if (html[at] != '<') {
      const size_t end = std::min(html.find('<', at), html.size());
      const std::string text = html.substr(at, end - at);
      const bool is_style = !open.empty() && open.back() == "style";
      if (!is_style && text.find_first_not_of(" \n") != std::string::npos) page.texts.push_back(unescaped(text));
      at = end;
      continue;
    }
    const size_t end = html.find('>', at);
    REQUIRE(end != std::string::npos);
    const std::string tag = html.substr(at + 1, end - at - 1);
    at = end + 1;
    if (tag[0] == '!') continue;
    if (tag[0] == '/') {
      REQUIRE(!open.empty());
      CHECK(open.back() == tag.substr(1));
      open.pop_back();
      continue;
    }
    Element element{tag.substr(0, tag.find(' ')), {}};
    for (size_t i = element.name.size(); i < tag.size();) {  // name="value", one space before each
      const size_t equals = tag.find("=\"", i), quote = tag.find('"', equals + 2);
      REQUIRE(quote != std::string::npos);
      element.attributes[tag.substr(i + 1, equals - i - 1)] = unescaped(tag.substr(equals + 2, quote - equals - 2));
      i = quote + 1;
    }
    if (!empty.contains(element.name)) open.push_back(element.name);
    page.elements.push_back(element);
  }
  CHECK(open.empty());
  return page;
}

std::string decoded(const std::string& base64) {
  const std::string digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char c : base64) {
    if (c == '=') break;
    REQUIRE(digits.find(c) != std::string::npos);
    bits = bits << 6 | static_cast<uint32_t>(digits.find(c));
    count += 6;
    if (count >= 8) bytes += static_cast<char>(bits >> (count -= 8) & 255);
  }
  return bytes;
}

// The pictures in a page, by their descriptions. There is nothing else that a browser would load or run.
std::map<std::string, std::string> pictures(const Page& page) {
  std::map<std::string, std::string> all;
  const std::string prefix = "data:image/png;base64,";
  for (const Element& element : page.elements) {
    CHECK(element.name != "script");
    CHECK(element.name != "link");
    for (const auto& [name, value] : element.attributes) {
      CHECK(name != "href");
      CHECK_FALSE(name.starts_with("on"));
    }
    if (element.name != "img") continue;
    const std::string source = element.attributes.at("src");
    REQUIRE(source.starts_with(prefix));
    all[element.attributes.at("alt")] = decoded(source.substr(prefix.size()));
  }
  return all;
}

TEST_CASE("report: what stands in it is text, never markup, and its pictures are whole") {
  const Sandbox box;
  fs::create_directory(box.folder / "samples");
  for (int step = 10; step < 35; ++step)
    write_png(box.folder / "samples" / ("step-" + std::to_string(step) + ".png"),
              picture(std::vector<uint8_t>(static_cast<size_t>(step), 7), 1, step, 1));
  std::ofstream(box.folder / "secret.png") << read(box.folder / "samples" / "step-10.png");
  fs::create_symlink("../secret.png", box.folder / "samples" / "step-09.png");
  fs::create_symlink("secret.png", box.folder / "loss.png");
  const std::string hostile = "\"><script>alert(1)</script>&amp;";
  write_report(box.folder, {hostile, {{"machine", hostile}}, {{"data", hostile}, {"steps", 3}, {"quiet", true}}});
  const std::string html = read(box.folder / "report.html");
  CHECK(html.starts_with("<!DOCTYPE html>"));
  const Page page = parse(html);
  CHECK(std::count(page.texts.begin(), page.texts.end(), hostile) == 4);  // title, heading, fact, setting
  const auto after = [&](const std::string& name) {
    const auto found = std::find(page.texts.begin(), page.texts.end(), name);
    REQUIRE(found + 1 < page.texts.end());
    return *(found + 1);
  };
  CHECK(after("machine") == hostile);
  CHECK(after("--steps") == "3");
  CHECK(after("--quiet") == "true");
  CHECK(contains(html, "it needs gnuplot"));

  const auto found = pictures(page);
  CHECK(found.size() == 12);
  CHECK(found.begin()->first == "step-10");
  CHECK(found.rbegin()->first == "step-34");
  for (const auto& [name, bytes] : found) CHECK(bytes == read(box.folder / "samples" / (name + ".png")));

  std::ofstream(box.folder / "report.html") << "mine";
  check_fails([&] { write_report(box.folder, {}); }, "report.html: what stands there is not a report of this program");
  CHECK(read(box.folder / "report.html") == "mine");
}

TEST_CASE("report: of a run, with its settings, where it stands and what it ran on") {
  const Sandbox box;
  succeed(box,
          "copy train --threads 1 --length 8 --layers 1 --width 8 --heads 2 --feed-forward 8 --batch 2 --steps 3 "
          "--out run");
  const Page page = parse(read(box.folder / "run" / "report.html"));
  std::string text;
  for (const std::string& part : page.texts) text += part + "\n";
  CAPTURE(text);
  for (const char* expected : {"copy, run\n", "updates\n3 of 3\n", "best validation\n", " nats\n", " tokens/s\n",
                               ", 1 threads, ", "runnel 0.", "--length\n8\n", "--preset\npaper\n"})
    CHECK(contains(text, expected));
  for (const auto& [name, bytes] : pictures(page)) CHECK(bytes == read(box.folder / "run" / "loss.png"));
}

}  // namespace
}  // namespace runnel::test
