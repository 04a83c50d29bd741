#include "runtime/base/thread.hpp"

#include <fmt/format.h>

#include <system_error>
#include <utility>

#include "runtime/base/error.hpp"

namespace spillway {

std::thread start_thread(std::string_view name, std::function<void()> work) {
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error& error) {
    throw Error(ErrorCode::io_error,
                fmt::format("cannot start thread \"{}\": {} (errno {}); allow this user more "
                            "processes (ulimit -u), or the cgroup (pids.max)",
                            name, error.code().message(), error.code().value()),
                error.code().value());
  }
}

}  // namespace spillway
