// What a user of the installed package does first: include a header, link, call.
#include <cstdio>

#include "runtime/base/error.hpp"
#include "runtime/base/units.hpp"

int main() {
  try {
    std::puts(spillway::format_bytes(spillway::parse_bytes("1.5GiB")).c_str());
  } catch (const spillway::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
