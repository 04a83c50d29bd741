#include "comm/tcp/rendezvous.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "comm/detail/silence.hpp"
#include "comm/tcp/listening.hpp"
#include "comm/tcp/proof.hpp"
#include "comm/tcp/reception.hpp"
#include "runtime/base/log.hpp"

namespace spillway::comm::detail {
namespace {

using Clock = std::chrono::steady_clock;

/// So much later than rank 0 the others give up, so that they hear from it who is missing.
constexpr std::chrono::milliseconds kGrace{5000};

/// A program that lets nobody finish a sentence is tried so often, at growing intervals.
constexpr int kMostCalls = 10;
constexpr std::chrono::milliseconds kBetweenCalls{20};

Hello hello_of(const LaunchEnvironment& launch, KeySource key, Purpose purpose) {
  Hello hello{.rank = launch.rank.value(), .ranks = launch.ranks, .purpose = purpose, .key = key};
  hello.set_job(launch.job);
  return hello;
}

/// So long rank 0, if it cannot go on, tells ranks that are still to come.
constexpr std::chrono::seconds kRefusal{1};

class Rendezvous {
 public:
  Rendezvous(const LaunchEnvironment& launch, std::chrono::milliseconds limit)
      : launch_(launch),
        limit_(limit),
        end_(Clock::now() + limit +
             (is_first() ? std::chrono::milliseconds(0) : std::min(limit, kGrace))),
        key_(launch),
        peers_(launch.ranks),
        places_(launch.ranks) {}

  std::vector<Peer> meet() {
    try {
      is_first() ? welcome_all() : introduce();
      while (missing(Purpose::data) || missing(Purpose::notices)) seat_next();
    } catch (const Error& error) {
      tell(error.code(), error.what());
      throw;
    }
    return std::move(peers_);
  }

  /// Lets the others know why this process cannot be one of them.
  void report(const Notice& failure) {
    if (is_first()) {
      open_reception(listen_as_first(launch_));
      while (reception_->turned_away() + 1 < launch_.ranks && Clock::now() < end_) {
        reception_->turn_away(failure, std::min<Deadline>(end_, Clock::now() + kBetweenCalls));
      }
      return;
    }
    call(0, Purpose::failure);
    send_small(peers_[0].notices.socket(), bytes_of(failure));
  }

 private:
  [[nodiscard]] bool is_first() const { return launch_.rank == Rank{0}; }

  /// Rank 0: waits for all, and tells each where the others are.
  void welcome_all() {
    open_reception(listen_as_first(launch_));
    while (missing(Purpose::notices)) seat_next();
    const Notice welcome{.kind = Notice::Kind::welcome};
    for (std::uint32_t rank = 1; rank < launch_.ranks; ++rank) {
      const FileDescriptor& socket = peers_[rank].notices.socket();
      expect(send_all(socket, bytes_of(welcome), end_), rank);
      expect(send_all(socket, std::as_bytes(std::span{places_}), end_), rank);
    }
  }

  /// Another rank: tells rank 0 where it is, waits for the places of all and connects to those
  /// before it.
  void introduce() {
    try {
      FileDescriptor first = connect(0);
      open_reception(listen_beside(launch_, first));
      if (!greet(std::move(first), 0, Purpose::meeting)) call(0, Purpose::meeting);
    } catch (const Error& error) {
      if (error.native() != 0) come_to_tell();
      throw;
    }
    const FileDescriptor& first = peers_[0].notices.socket();
    Notice notice;
    expect(receive_all(first, writable_bytes_of(notice), end_, [this] { tell_waiting("rank 0"); }),
           0);
    const std::optional<Notice> checked = check_notice(notice);
    check(checked.has_value(), ErrorCode::device_error,
          "rank 0 has sent something else than a notice");
    if (checked->kind != Notice::Kind::welcome) throw_notice(*checked);
    expect(receive_all(first, std::as_writable_bytes(std::span{places_}), end_), 0);
    for (std::uint32_t rank = 0; rank < launch_.rank.value(); ++rank) {
      call(rank, Purpose::data);
      if (rank > 0) call(rank, Purpose::notices);
    }
  }

  /// The system does not let this rank go on: it comes to rank 0 all the same, which waits for it
  /// and is to hear why.
  void come_to_tell() {
    if (is_seated(0, Purpose::notices)) return;
    end_ = std::min(end_, Clock::now() + kRefusal);
    try {
      call(0, Purpose::meeting);
    } catch (const Error&) {  // the first error is the one that counts
    }
  }

  void open_reception(FileDescriptor listener) {
    reception_.emplace(hello_of(launch_, key_.source(), Purpose::meeting), std::move(listener),
                       key_);
  }

  /// Connects to `rank`, and makes sure that it is that. Who has no time for a caller among many is
  /// called again.
  void call(std::uint32_t rank, Purpose purpose) {
    for (int i = 1; !greet(connect(rank), rank, purpose); ++i) {
      check(i < kMostCalls, ErrorCode::device_error,
            fmt::format("who takes connections for rank {} at {} port {} closes them: is another "
                        "program there?",
                        rank, host_of(rank), port_of(rank)));
      std::this_thread::sleep_for(i * kBetweenCalls);
    }
  }

  /// Makes sure that `rank` is at the other end, and takes the connection. Returns false if that
  /// has closed it before both have proved who they are.
  [[nodiscard]] bool greet(FileDescriptor socket, std::uint32_t rank, Purpose purpose) {
    Hello hello = hello_of(launch_, key_.source(), purpose);
    if (purpose == Purpose::meeting && reception_.has_value()) hello.port = reception_->port();
    hello.nonce = random_nonce();
    const Ending greeted = send_all(socket, bytes_of(hello), end_);
    if (is_to_repeat(greeted, rank)) return false;
    Challenge challenge;
    const Ending challenged = receive_answer(socket, rank, challenge);
    if (is_to_repeat(challenged, rank)) return false;
    expect(challenged, rank);
    const Key& key = key_for(socket);
    expect(send_all(socket, bytes_of(prove(key, Side::caller, hello, challenge)), end_), rank);
    Proof proof;
    const Ending answered = receive_answer(socket, rank, proof);
    if (is_to_repeat(answered, rank)) return false;
    expect(answered, rank);
    check(is_proved(key, Side::called, hello, challenge, proof), ErrorCode::device_error,
          another_program(rank));
    if (purpose == Purpose::data) {
      peers_[rank].data = std::move(socket);
    } else {
      peers_[rank].notices = Inbox(Rank{rank}, std::move(socket));
    }
    return true;
  }

  [[nodiscard]] bool is_to_repeat(const Ending& ending, std::uint32_t rank) const {
    if (ending.kind != Ending::Kind::closed) return false;
    log_warning("rank {} calls rank {} again, whose connection was lost: {}", launch_.rank.value(),
                rank, reason_of(ending));
    return true;
  }

  [[nodiscard]] std::string reason_of(const Ending& ending) const {
    if (ending.kind == Ending::Kind::late) {
      return fmt::format("it has not answered within {} s", seconds());
    }
    return ending.error == 0 ? "it was closed" : std::strerror(ending.error);
  }

  /// Returns the key, or lets who was called know that there is none.
  [[nodiscard]] const Key& key_for(const FileDescriptor& socket) {
    try {
      return key_.get();
    } catch (const Error&) {
      send_small(socket, bytes_of(Proof{}));
      throw;
    }
  }

  [[nodiscard]] FileDescriptor connect(std::uint32_t rank) {
    try {
      return connect_to(host_of(rank), port_of(rank), end_, [&] {
        hear();
        tell_waiting(fmt::format("rank {} to take connections at {} port {}", rank, host_of(rank),
                                 port_of(rank)));
      });
    } catch (const Error& error) {
      if (heard_.has_value()) throw;
      const bool late = Clock::now() >= end_;
      throw Error(error.code(),
                  fmt::format("rank {} has not reached rank {}{}: {}", launch_.rank.value(), rank,
                              late ? fmt::format(" within {} s", seconds()) : "", error.what()),
                  error.native());
    }
  }

  /// Receives what follows a magic that is Answer's, or throws the refusal that comes in its place.
  template <class Answer>
  [[nodiscard]] Ending receive_answer(const FileDescriptor& socket, std::uint32_t rank,
                                      Answer& answer) {
    const std::span<std::byte> whole = writable_bytes_of(answer);
    const auto hear_meanwhile = [this] { hear(); };
    Ending ending = receive_all(socket, whole.first(sizeof answer.magic), end_, hear_meanwhile);
    if (!ending) return ending;
    if (answer.magic == Answer::kMagic) {
      return receive_all(socket, whole.subspan(sizeof answer.magic), end_, hear_meanwhile);
    }
    check(answer.magic == Notice::kMagic, ErrorCode::device_error, another_program(rank));
    Notice notice;
    ending = receive_all(socket, writable_bytes_of(notice).subspan(sizeof notice.magic), end_);
    if (!ending) return ending;
    const std::optional<Notice> checked = check_notice(notice);
    check(checked.has_value(), ErrorCode::device_error, another_program(rank));
    throw_notice(*checked);
  }

  [[nodiscard]] std::string host_of(std::uint32_t rank) const {
    const bool by_name = rank == 0 || places_[rank].host_name().empty();
    return std::string(by_name ? launch_.host : places_[rank].host_name());
  }
  [[nodiscard]] std::uint16_t port_of(std::uint32_t rank) const {
    return rank == 0 ? launch_.port : places_[rank].port;
  }
  [[nodiscard]] std::string another_program(std::uint32_t rank) const {
    return fmt::format(
        "at {} port {} is a program other than rank {} of this job; choose another "
        "port by SPILLWAY_MASTER_PORT",
        host_of(rank), port_of(rank), rank);
  }

  [[nodiscard]] bool is_seated(std::uint32_t rank, Purpose purpose) const {
    const Peer& peer = peers_[rank];
    return purpose == Purpose::data ? peer.data.is_open() : peer.notices.is_open();
  }

  [[nodiscard]] std::vector<std::uint32_t> absent(Purpose purpose) const {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (rank != launch_.rank.value() && !is_seated(rank, purpose)) ranks.push_back(rank);
    }
    return ranks;
  }
  [[nodiscard]] bool missing(Purpose purpose) const { return !absent(purpose).empty(); }

  /// Waits for one rank to connect.
  void seat_next() {
    const std::vector<std::uint32_t> late =
        absent(missing(Purpose::notices) ? Purpose::notices : Purpose::data);
    std::optional<Guest> guest = reception_->admit(watched(), std::min(end_, next_word_));
    if (!guest.has_value()) {
      hear();
      tell_waiting(
          fmt::format("rank{} {} to come", late.size() == 1 ? "" : "s", fmt::join(late, ", ")));
      if (Clock::now() < end_) return;
      const std::string& refusal = reception_->last_refusal();
      throw Error(
          ErrorCode::device_error,
          fmt::format("of {} ranks, {} {} not come to {} port {} within {} s: start all of "
                      "them, with the same MASTER_ADDR and port, and see that no firewall "
                      "is between them{}",
                      launch_.ranks, fmt::join(late, ", "), late.size() == 1 ? "has" : "have",
                      launch_.host, launch_.port, seconds(),
                      refusal.empty() ? "" : "; one was turned away: " + refusal));
    }
    const Hello& hello = guest->hello;
    if (hello.purpose == Purpose::failure) return hear_failure(guest->socket);
    if (is_seated(hello.rank, hello.purpose)) {
      return reception_->refuse(guest->socket,
                                fmt::format("two processes are rank {}", hello.rank));
    }
    if (hello.purpose == Purpose::data) {
      peers_[hello.rank].data = std::move(guest->socket);
      return;
    }
    if (hello.purpose == Purpose::meeting) {
      const std::string host = other_end(guest->socket);
      std::memcpy(places_[hello.rank].host, host.data(),
                  std::min(host.size(), sizeof(Place::host) - 1));
      places_[hello.rank].port = static_cast<std::uint16_t>(hello.port);
    }
    peers_[hello.rank].notices = Inbox(Rank{hello.rank}, std::move(guest->socket));
  }

  /// Throws what a process says that cannot be a rank.
  void hear_failure(const FileDescriptor& socket) const {
    Notice notice;
    if (!receive_all(socket, writable_bytes_of(notice), Clock::now() + kRefusal)) return;
    const std::optional<Notice> failed = check_notice(notice);
    if (!failed.has_value()) return;
    throw Error(
        static_cast<ErrorCode>(failed->code),
        fmt::format("one of the processes of this job cannot be a rank of it: {}", failed->text()));
  }

  /// Logs which rank this one waits for, at growing intervals.
  void tell_waiting(const std::string& whom) {
    if (Clock::now() < next_word_) return;
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - begin_);
    log_warning("rank {} has waited {} s for {}", launch_.rank.value(), waited.count(), whom);
    next_word_ = Clock::now() + std::max<Clock::duration>(waited, kSilence);
  }

  /// Whether this rank hears when that one cannot go on: rank 0 hears from all, and the others from
  /// rank 0.
  [[nodiscard]] bool is_watched(std::uint32_t rank) const {
    return (is_first() || rank == 0) && peers_[rank].notices.is_watched();
  }
  [[nodiscard]] std::vector<int> watched() const {
    std::vector<int> sockets;
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (is_watched(rank)) sockets.push_back(peers_[rank].notices.socket().get());
    }
    return sockets;
  }

  /// Throws what a rank that cannot go on has said, or that it has died. One that has left has met
  /// all others.
  void hear() {
    for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
      if (!is_watched(rank)) continue;
      if (const std::optional<Notice> failed = peers_[rank].notices.hear()) throw_notice(*failed);
    }
  }

  [[noreturn]] void throw_notice(const Notice& notice) {
    if (notice.kind != Notice::Kind::refused) heard_ = notice;
    throw notice.error();
  }

  /// Throws unless a message to or from `rank` has gone in whole.
  void expect(const Ending& ending, std::uint32_t rank) const {
    if (ending) return;
    throw Error(ErrorCode::device_error,
                fmt::format("rank {} has lost rank {} before all ranks had met: {}",
                            launch_.rank.value(), rank, reason_of(ending)),
                ending.error);
  }

  [[nodiscard]] double seconds() const { return static_cast<double>(limit_.count()) / 1e3; }

  /// Informs every rank that waits for this one why it does not come.
  void tell(ErrorCode code, std::string_view reason) noexcept {
    const Notice notice = heard_.value_or(failure_notice(launch_.rank, code, reason));
    try {
      for (std::uint32_t rank = 0; rank < launch_.ranks; ++rank) {
        if (is_watched(rank)) send_small(peers_[rank].notices.socket(), bytes_of(notice));
      }
      if (is_first() && reception_.has_value()) {  // also one that has lost its seat
        reception_->turn_away(notice, Clock::now() + kRefusal);
      }
    } catch (const std::exception&) {  // the first error is the one that counts
    }
  }

  const LaunchEnvironment& launch_;
  const std::chrono::milliseconds limit_;
  const Deadline begin_ = Clock::now();
  Deadline end_;
  Deadline next_word_ = begin_ + kSilence;
  JobKey key_;
  std::optional<Reception> reception_;  // once it is known where
  std::vector<Peer> peers_;
  std::vector<Place> places_;
  std::optional<Notice> heard_;
};

}  // namespace

std::vector<Peer> meet(const LaunchEnvironment& launch, std::chrono::milliseconds limit) {
  check(launch.ranks <= kMostTcpRanks, ErrorCode::not_supported,
        fmt::format("{} ranks cannot meet by tcp, but {}; use mpi", launch.ranks, kMostTcpRanks));
  raise_open_files(launch.ranks);
  return Rendezvous(launch, limit).meet();
}

void report_failure(const LaunchEnvironment& launch, const Error& error) noexcept {
  if (launch.ranks > kMostTcpRanks) return;  // no such job meets
  try {
    Rendezvous(launch, kSilence).report(failure_notice(Rank{0}, error.code(), error.what()));
  } catch (const std::exception&) {  // the error itself is the one that counts
  }
}

}  // namespace spillway::comm::detail
