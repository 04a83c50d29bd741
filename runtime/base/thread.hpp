// start_thread: a std::thread that says which it was when the system has none left.
#pragma once

#include <functional>
#include <string_view>
#include <thread>

namespace spillway {

/// Starts a thread, or throws `Error{io_error}` that names it ("thread \"compute\"").
[[nodiscard]] std::thread start_thread(std::string_view name, std::function<void()> work);

}  // namespace spillway
