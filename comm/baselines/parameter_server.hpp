// ParameterServer and ParameterWorker: rank 0 holds values, and the other ranks push what is to be
// done to them, and pull them. A baseline that is compared with Communicator's collectives; nothing
// of the runtime trains by it. Each owns its buffers, which are taken at the start, and is called
// by the control thread of its rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/baselines/staleness.hpp"
#include "comm/communicator.hpp"

namespace spillway::comm {

/// `synchronous`: all push, and the server applies the sum, which it adds in the order of ranks.
/// `asynchronous`: the server applies each push when it comes. `geo`: a worker changes the values
/// on its own for some steps, pushes by how much, divided by the number of workers, and the server
/// applies that when it comes.
enum class ServerMode : std::uint8_t { synchronous, asynchronous, geo };
inline constexpr ServerMode kServerModes[] = {ServerMode::synchronous, ServerMode::asynchronous,
                                              ServerMode::geo};

[[nodiscard]] std::string_view name_of(ServerMode mode);
/// Whether training differs from that of one process with all of the data, and in its bits from run
/// to run: the order in which pushes come decides.
[[nodiscard]] bool is_other_mathematics(ServerMode mode);

/// The same on every rank; the constructors detect a difference.
struct ServerOptions {
  ServerMode mode = ServerMode::synchronous;
  std::size_t elements = 0;
  /// Bounds, but for `synchronous`, how many pushes of others the server applies between a worker's
  /// pull and its next push. The least bound is the number of workers - 1, with which they push in
  /// turn.
  std::uint32_t staleness = 0;
  std::uint32_t local_steps = 1;  ///< of `geo`: between two pushes of a worker
};

/// Origin of what is applied.
struct Push {
  Rank worker{};                ///< rank 0 stands for the sum of all workers
  std::uint32_t staleness = 0;  ///< pushes of other workers that were applied since it pulled
};

/// Pushes and pulls are messages between a worker and the server. A push of asynchronous workers is
/// taken when it comes: of those that have come, that of the worker that has pushed least, then
/// that of the lowest rank. A worker that is ahead waits in `push` for as long as the staleness of
/// others would exceed its bound, and for nothing else but the server.
///
/// A session of W workers with P pushes of E elements sends 4 E P bytes from each worker and 4 E P
/// W from the server; to begin it sends 4 E bytes more, from all but the last rank, and 4 bytes to
/// each other rank. Errors are those of Communicator, and name the rank.
class ParameterServer {
 public:
  /// Makes `values` what `push` says.
  using Update =
      std::function<void(std::span<float> values, std::span<const float> pushed, const Push& push)>;

  /// Joins, as rank 0 of two or more, the others, which make a ParameterWorker each. Throws
  /// `Error{invalid_argument}` naming invalid options, or the rank whose options differ.
  ParameterServer(Communicator& communicator, const ServerOptions& options,
                  std::span<const float> values);

  /// Begins a session in which every worker pushes `pushes` times. Every rank calls it once the one
  /// before is over. All workers then have the values.
  void begin(std::uint32_t pushes);
  /// Applies all pushes of the session: one `update` for each, or for their sum.
  void serve(const Update& update);

  [[nodiscard]] std::span<const float> values() const { return values_; }

 private:
  void serve_rounds(const Update& update);
  void serve_arrivals(const Update& update);
  /// Lists the workers whose push may be applied next, those that have pushed least first.
  void list_candidates();

  Communicator& communicator_;
  const ServerOptions options_;
  std::vector<float> values_;
  std::vector<float> pushed_;
  std::vector<float> sum_;  // of rounds
  Staleness staleness_;
  std::vector<Rank> candidates_;
  std::uint32_t rounds_ = 0;
};

/// Adds what is pushed: the `update` of geo.
void add_pushed(std::span<float> values, std::span<const float> pushed, const Push& push);

class ParameterWorker {
 public:
  ParameterWorker(Communicator& communicator, const ServerOptions& options);

  void begin(std::uint32_t pushes);

  /// Values of this worker's last pull. Steps of geo change them.
  [[nodiscard]] std::span<float> values() { return values_; }

  /// Pushes a gradient and pulls. Not in geo.
  void push(std::span<const float> gradient);
  /// Ends a step of geo; after `local_steps` of them pushes what they have changed, pulls, and
  /// returns true.
  bool end_local_step();

 private:
  void push_and_pull(std::span<const float> pushed);

  Communicator& communicator_;
  const ServerOptions options_;
  std::vector<float> values_;
  std::vector<float> pulled_;  // of geo: what the local steps have begun with, then their changes
  std::uint32_t left_ = 0;
  std::uint32_t steps_ = 0;  // of geo, since the last pull
};

}  // namespace spillway::comm
