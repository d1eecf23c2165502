// The test program: doctest's. With --skip-status=N, a run in which nothing failed and some test said "skipped: ..."
// ends with status N, by which ctest knows it.
#define DOCTEST_CONFIG_IMPLEMENT
#include <cfloat>  // which doctest.h uses

#include <doctest/doctest.h>

#include <cstdlib>
#include <string_view>

namespace {

bool any_skipped = false;

struct SkipListener : doctest::IReporter {
  explicit SkipListener(const doctest::ContextOptions&) {}
  void log_message(const doctest::MessageData& message) override {
    if (std::string_view(message.m_string.c_str()).starts_with("skipped: ")) any_skipped = true;
  }
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("skips", 1, SkipListener);

}  // namespace

#if RUNNEL_WITH_ADDRESS_SANITIZER
extern "C" const char* __lsan_default_suppressions() {
  return "leak:libomp";
}  // clang's, when the number of threads changes
#endif

int main(int argc, char** argv) {
  int skip_status = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i], name = "--skip-status=";
    if (argument.starts_with(name)) skip_status = std::atoi(argv[i] + name.size());
  }
  const int status = doctest::Context(argc, argv).run();
  return status == 0 && any_skipped ? skip_status : status;
}
