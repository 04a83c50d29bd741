// ServedStep: one push of every worker of a parameter server, as `bench comm` measures it. Each
// rank has one, for its part. Owned and called by the control thread of the rank.
#pragma once

#include <optional>
#include <span>

#include "comm/baselines/parameter_server.hpp"

namespace spillway::bench {

class ServedStep {
 public:
  /// Takes memory, and begins a session of one push with a server whose values are 0. What workers
  /// push is `data`, which is as long on every rank.
  ServedStep(comm::Communicator& communicator, comm::ServerMode mode, std::span<const float> data);

  /// Pushes and pulls, or on rank 0 adds what comes to the values.
  void run();

  /// Returns what this rank holds: the sum of all workers' data on rank 0; on the others, the sum
  /// of what had been added when they pulled.
  [[nodiscard]] std::span<const float> values();

 private:
  const comm::ServerMode mode_;
  const std::span<const float> data_;
  std::optional<comm::ParameterServer> server_;
  std::optional<comm::ParameterWorker> worker_;
};

}  // namespace spillway::bench
