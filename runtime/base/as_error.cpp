#include "runtime/base/as_error.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

namespace spillway {
namespace {

/// Returns what a text of libstdc++, "filesystem error: cannot remove: No such ... [/a]", has of
/// the operation.
std::string_view operation_of(std::string_view text) {
  constexpr std::string_view kPrefix = "filesystem error: ";
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  return text.substr(0, text.find(": "));
}

Error of_files(const std::filesystem::filesystem_error& error) {
  std::string what(operation_of(error.what()));
  if (!error.path1().empty()) what += fmt::format(" {}", error.path1().string());
  if (!error.path2().empty()) what += fmt::format(" to {}", error.path2().string());
  const std::error_code code = error.code();
  return {ErrorCode::io_error, fmt::format("{}: {} (errno {})", what, code.message(), code.value()),
          code.value()};
}

}  // namespace

Error as_error(const std::exception& exception) {
  if (const auto* ours = dynamic_cast<const Error*>(&exception)) return *ours;
  if (dynamic_cast<const std::bad_alloc*>(&exception) != nullptr) {
    return {ErrorCode::out_of_memory, "the system refused memory: free some, or lower the budget"};
  }
  if (const auto* files = dynamic_cast<const std::filesystem::filesystem_error*>(&exception)) {
    return of_files(*files);
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&exception)) {
    return {ErrorCode::io_error, system->what(), system->code().value()};
  }
  return {ErrorCode::internal, exception.what()};
}

}  // namespace spillway
