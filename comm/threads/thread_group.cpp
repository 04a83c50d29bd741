#include "comm/threads/thread_group.hpp"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/detail/ordered_sum.hpp"
#include "runtime/base/error.hpp"

namespace spillway::comm {
namespace {

/// What a rank shows the others while it is in a collective. Equal calls differ in the buffer only.
struct Call {
  const std::byte* buffer = nullptr;
  std::size_t bytes = 0;
  Rank root;
  DType dtype = DType::fp32;
  Operation operation = Operation::all_gather;

  [[nodiscard]] bool matches(const Call& other) const {
    return bytes == other.bytes && root == other.root && dtype == other.dtype &&
           operation == other.operation;
  }
};

/// A message on its way from one rank to another; at most one per pair.
struct Mailbox {
  enum class State { empty, full, copying };

  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  State state = State::empty;
};

}  // namespace

/// What the ranks share. Methods are called by any rank.
class ThreadGroup::Shared {
 public:
  explicit Shared(std::uint32_t ranks)
      : ranks_(ranks), calls_(ranks), mailboxes_(std::size_t{ranks} * ranks) {}

  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

  void break_up(std::exception_ptr cause) {
    const std::lock_guard lock(mutex_);
    if (!cause_) cause_ = std::move(cause);
    changed_.notify_all();
  }

  void rethrow_cause() const {
    const std::lock_guard lock(mutex_);
    if (cause_) std::rethrow_exception(cause_);
  }

  /// Returns once every rank has arrived as often as this one.
  void arrive_and_wait() {
    std::unique_lock lock(mutex_);
    check_whole();
    const std::uint64_t round = round_;
    if (++arrived_ == ranks_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    wait(lock, [&] { return round_ != round; });
  }

  /// Shows `call` and waits until every rank shows its own. The others' buffers may be read until
  /// this rank arrives once more.
  void enter(Rank rank, const Call& call) {
    calls_[rank.value()] = call;
    arrive_and_wait();
    const bool agreed = std::ranges::all_of(
        calls_, [this](const Call& other) { return other.matches(calls_.front()); });
    check(agreed, ErrorCode::invalid_argument,
          "the ranks called different collectives, or one with different sizes");
  }

  /// Valid between `enter` and the next arrival.
  [[nodiscard]] const std::byte* buffer_of(std::uint32_t rank) const { return calls_[rank].buffer; }

  void send(Rank from, Rank to, Communicator::Source data) {
    std::unique_lock lock(mutex_);
    Mailbox& mailbox = mailbox_between(from, to);
    check_whole();
    mailbox = {.data = data.data(), .bytes = data.size(), .state = Mailbox::State::full};
    changed_.notify_all();
    // A copy that has begun reads this rank's buffer, whatever else has failed meanwhile.
    changed_.wait(lock, [&] {
      return mailbox.state == Mailbox::State::empty ||
             (cause_ && mailbox.state != Mailbox::State::copying);
    });
    if (mailbox.state == Mailbox::State::full) check_whole();
  }

  void receive(Rank from, Rank to, Communicator::Target data) {
    std::unique_lock lock(mutex_);
    Mailbox& mailbox = mailbox_between(from, to);
    wait(lock, [&] { return mailbox.state == Mailbox::State::full; });
    check_whole();
    check(mailbox.bytes == data.size(), ErrorCode::invalid_argument,
          "a message of another size than the one received");
    mailbox.state = Mailbox::State::copying;
    lock.unlock();
    std::copy_n(mailbox.data, data.size(), data.data());
    lock.lock();
    mailbox.state = Mailbox::State::empty;
    changed_.notify_all();
  }

 private:
  Mailbox& mailbox_between(Rank from, Rank to) {
    return mailboxes_[std::size_t{from.value()} * ranks_ + to.value()];
  }

  void check_whole() const {
    check(!cause_, ErrorCode::device_error, "another rank of this group has failed");
  }

  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    changed_.wait(lock, [&] { return condition() || cause_; });
    if (!condition()) check_whole();
  }

  const std::uint32_t ranks_;
  std::vector<Call> calls_;  // each written by its rank, read by others between two arrivals

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::uint32_t arrived_ = 0;
  std::uint64_t round_ = 0;
  std::vector<Mailbox> mailboxes_;
  std::exception_ptr cause_;
};

/// One rank's end. Collectives read the other ranks' buffers where they lie, between two arrivals.
class ThreadGroup::Member final : public Communicator {
 public:
  Member(Shared& shared, Rank rank) : Communicator(rank, shared.ranks()), shared_(shared) {}

 private:
  void do_all_gather(Source shard, Target all) override {
    enter(shard, Operation::all_gather);
    for (std::uint32_t from = 0; from < ranks(); ++from) {
      std::byte* part = all.data() + shard.size() * from;
      const std::byte* source = shared_.buffer_of(from);
      if (source != part) std::copy_n(source, shard.size(), part);
    }
    shared_.arrive_and_wait();
  }

  void do_reduce_scatter(Source all, Target shard, DType dtype) override {
    enter(all, Operation::reduce_scatter, Rank{0}, dtype);
    const std::size_t offset = shard.size() * rank().value();
    detail::ordered_sum(
        ranks(), [&](std::uint32_t from) { return shared_.buffer_of(from) + offset; }, shard,
        dtype);
    shared_.arrive_and_wait();
  }

  void do_broadcast(Target data, Rank root) override {
    enter(data, Operation::broadcast, root);
    if (rank() != root) std::copy_n(shared_.buffer_of(root.value()), data.size(), data.data());
    shared_.arrive_and_wait();
  }

  void do_all_to_all(Source source, Target target) override {
    enter(source, Operation::all_to_all);
    const std::size_t part = source.size() / ranks();
    for (std::uint32_t from = 0; from < ranks(); ++from) {
      std::copy_n(shared_.buffer_of(from) + part * rank().value(), part,
                  target.data() + part * from);
    }
    shared_.arrive_and_wait();
  }

  void do_send(Source data, Rank to) override { shared_.send(rank(), to, data); }
  void do_receive(Target data, Rank from) override { shared_.receive(from, rank(), data); }
  void do_barrier() override {
    enter({}, Operation::barrier);
    shared_.arrive_and_wait();
  }

  void enter(Source buffer, Operation operation, Rank root = Rank{0}, DType dtype = DType::fp32) {
    shared_.enter(rank(), {.buffer = buffer.data(),
                           .bytes = buffer.size(),
                           .root = root,
                           .dtype = dtype,
                           .operation = operation});
  }

  Shared& shared_;
};

ThreadGroup::ThreadGroup(std::uint32_t ranks) {
  check(ranks > 0, ErrorCode::invalid_argument, "a group has at least one rank");
  shared_ = std::make_unique<Shared>(ranks);
}

ThreadGroup::~ThreadGroup() = default;

void ThreadGroup::run(const std::function<void(Communicator&)>& body) {
  std::vector<std::thread> threads;
  const auto run_rank = [this, &body](Rank rank) {
    try {
      Member member(*shared_, rank);
      body(member);
    } catch (...) {
      shared_->break_up(std::current_exception());
    }
  };
  try {
    for (std::uint32_t rank = 0; rank < shared_->ranks(); ++rank) {
      threads.emplace_back(run_rank, Rank{rank});
    }
  } catch (...) {  // the system gives no more threads: those that run must not wait for the rest
    shared_->break_up(std::current_exception());
  }
  for (std::thread& thread : threads) thread.join();
  shared_->rethrow_cause();
}

}  // namespace spillway::comm
