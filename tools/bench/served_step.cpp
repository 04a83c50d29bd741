#include "tools/bench/served_step.hpp"

#include <algorithm>
#include <vector>

namespace spillway::bench {

ServedStep::ServedStep(comm::Communicator& communicator, comm::ServerMode mode,
                       std::span<const float> data)
    : mode_(mode), data_(data) {
  const comm::ServerOptions options{
      .mode = mode, .elements = data.size(), .staleness = communicator.ranks(), .local_steps = 1};
  if (communicator.rank() == Rank{0}) {
    server_.emplace(communicator, options, std::vector<float>(data.size()));
    server_->begin(1);
    return;
  }
  worker_.emplace(communicator, options);
  worker_->begin(1);
  if (mode == comm::ServerMode::geo) std::ranges::copy(data, worker_->values().begin());
}

void ServedStep::run() {
  if (server_.has_value()) return server_->serve(comm::add_pushed);
  if (mode_ == comm::ServerMode::geo) {
    worker_->end_local_step();
  } else {
    worker_->push(data_);
  }
}

std::span<const float> ServedStep::values() {
  return server_.has_value() ? server_->values() : std::span<const float>(worker_->values());
}

}  // namespace spillway::bench
