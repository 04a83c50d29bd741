// What the configuration tests share. Test code only.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "runtime/base/error.hpp"
#include "runtime/config/train_options.hpp"
#include "tests/support/source_dir.hpp"

namespace spillway::config::test {

inline std::string example(const std::string& name) {
  const auto path = test_support::source_dir() / "tests/config/config_fuzz_corpus" / name;
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_FALSE(text.str().empty()) << path;
  return text.str();
}

inline TrainOptions options_of(std::string_view text) {
  return parse_train_config(text, "test.json").options;
}

/// The error that parsing `text` ends with; fails the test when it is read.
inline Error parse_error(std::string_view text) {
  try {
    static_cast<void>(parse_train_config(text, "test.json"));
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "accepted: " << text;
  return Error(ErrorCode::internal, "nothing was thrown");
}

inline Error validate_error(const TrainOptions& options) {
  try {
    validate(options);
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "accepted";
  return Error(ErrorCode::internal, "nothing was thrown");
}

}  // namespace spillway::config::test
