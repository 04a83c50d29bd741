// A program of several ranks of which the last one does something wrong in the middle of a row of
// all-reduces. ranks_failures_test.py runs it.
// usage: failing_ranks none|works|throws|exits|dies|hangs|sizes|operations|version|configuration
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "comm/handshake.hpp"
#include "comm/launch_environment.hpp"

namespace spillway::comm {
namespace {

constexpr CommunicatorOptions kOptions{.timeout_ms = 700};

void misbehave(Communicator& self, std::string_view how) {
  std::vector<std::byte> data(8);
  if (how == "works") {
    const AtWork work(&self);
    ::sleep(3);
  }
  if (how == "throws") throw std::runtime_error("the disk of this rank is full");
  if (how == "exits") std::_Exit(7);
  if (how == "dies") std::raise(SIGKILL);
  if (how == "hangs") ::sleep(60);
  if (how == "sizes") self.all_reduce(data, DType::fp32).wait();
  if (how == "operations") self.barrier().wait();
}

void run(std::string_view how) {
  const auto launch = read_launch_environment([](const char* name) { return std::getenv(name); });
  const bool tcp = launch.has_value() && launch->backend == "tcp";
  const auto communicator =
      tcp ? make_tcp_communicator(*launch, kOptions) : make_communicator("mpi", kOptions);
  Communicator& self = *communicator;
  const bool wrong = self.rank() == Rank{self.ranks() - 1};
  handshake(self, {.version = wrong && how == "version" ? "0.1" : "0.2",
                   .ranks = self.ranks(),
                   .settings = wrong && how == "configuration" ? "seed: 5" : "seed: 6"});
  std::vector<std::byte> data(4096);
  for (int i = 0; i < 20; ++i) {
    if (wrong && i == 10) misbehave(self, how);
    self.all_reduce(data, DType::fp32).wait();
  }
}

}  // namespace
}  // namespace spillway::comm

int main(int, char** argv) {
  try {
    spillway::comm::run(argv[1]);
    std::puts("no rank has failed");
    return EXIT_SUCCESS;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ERROR: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
