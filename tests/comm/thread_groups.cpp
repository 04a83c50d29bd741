#include <fmt/format.h>

#include "comm/threads/thread_group.hpp"
#include "tests/comm/groups.hpp"
#include "tests/comm/tcp_ranks.hpp"

namespace spillway::comm {
namespace {

/// So small that the buffers of the tests take many.
constexpr Bytes kSmallPiece = 2_KiB;

Group threads(std::uint32_t ranks, Bytes piece) {
  const ThreadGroupOptions options{.communicator = {.timeout_ms = 60'000, .piece = piece}};
  return {.name = fmt::format("threads_{}{}", ranks, piece == kSmallPiece ? "_small_pieces" : ""),
          .ranks = ranks,
          .run = [=](const Body& body) { ThreadGroup(ranks, options).run(body); }};
}

/// Some of five ranks, in another order.
Group subgroup(const std::vector<Rank>& members) {
  const ThreadGroupOptions options{.communicator = {.timeout_ms = 60'000, .piece = kSmallPiece}};
  return {.name = fmt::format("subgroup_of_{}", members.size()),
          .ranks = static_cast<std::uint32_t>(members.size()),
          .run = [=](const Body& body) {
            ThreadGroup(5, options).run([&](Communicator& self) {
              run_in_subgroup(self, members, body);
            });
          }};
}

Group tcp(std::uint32_t ranks, Bytes piece) {
  const CommunicatorOptions options{.timeout_ms = 60'000, .piece = piece};
  return {.name = fmt::format("tcp_{}{}", ranks, piece == kSmallPiece ? "_small_pieces" : ""),
          .ranks = ranks,
          .run = [=](const Body& body) { run_tcp_ranks(ranks, options, body); }};
}

}  // namespace

std::vector<Group> groups() {
  std::vector<Group> all{{.name = "single", .ranks = 1, .run = [](const Body& body) {
                            body(*make_communicator("single"));
                          }}};
  for (std::uint32_t ranks = 1; ranks <= 8; ++ranks) {
    all.push_back(threads(ranks, ranks % 2 == 0 ? kSmallPiece : 8_MiB));
  }
  all.push_back(threads(3, kSmallPiece));
  all.push_back(subgroup({Rank{3}}));
  all.push_back(subgroup({Rank{4}, Rank{1}, Rank{2}}));
  for (const std::uint32_t ranks : {1U, 2U, 3U, 5U}) all.push_back(tcp(ranks, kSmallPiece));
  all.push_back(tcp(3, 8_MiB));
  return all;
}

}  // namespace spillway::comm
