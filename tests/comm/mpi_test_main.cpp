// The main of tests that mpirun starts: every rank runs all of them with the one communicator that
// its process can have, and every rank fails when one does.
// usage: mpi_comm_test [--piece=BYTES] [GoogleTest's]
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "runtime/base/units.hpp"
#include "tests/comm/groups.hpp"

namespace spillway::comm {
namespace {

Communicator* of_process = nullptr;

int run_tests(Communicator& communicator, int argc, char** argv) {
  of_process = &communicator;
  testing::InitGoogleTest(&argc, argv);
  if (communicator.rank() != Rank{0}) GTEST_FLAG_SET(brief, true);
  const int mine = RUN_ALL_TESTS();
  std::vector<int> all(communicator.ranks());
  communicator
      .all_gather(std::as_bytes(std::span{&mine, 1}), std::as_writable_bytes(std::span{all}))
      .wait();
  return *std::ranges::max_element(all);
}

}  // namespace

std::vector<Group> groups() {
  std::vector<Group> all{{.name = fmt::format("mpi_{}", of_process->ranks()),
                          .ranks = of_process->ranks(),
                          .run = [](const Body& body) { body(*of_process); }}};
  if (of_process->ranks() == 4) {
    const std::vector<Rank> members{Rank{3}, Rank{0}, Rank{1}};
    all.push_back({.name = "mpi_subgroup_of_3", .ranks = 3, .run = [=](const Body& body) {
                     run_in_subgroup(*of_process, members, body);
                   }});
  }
  return all;
}

}  // namespace spillway::comm

int main(int argc, char** argv) {
  using namespace spillway;
  constexpr std::string_view kPiece = "--piece=";
  comm::CommunicatorOptions options{.timeout_ms = 20'000};
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kPiece)) options.piece = parse_bytes(argument.substr(kPiece.size()));
  }
  try {
    const auto communicator = comm::make_communicator("mpi", options);
    return comm::run_tests(*communicator, argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
