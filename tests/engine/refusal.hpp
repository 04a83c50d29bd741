// What a call that is refused says.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/error.hpp"

namespace spillway::engine {

/// Returns the name of the error's code and its text; "none" where the call ends well.
[[nodiscard]] inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return std::string(name_of(error.code())) + ": " + error.what();
  }
  return "none";
}

}  // namespace spillway::engine
