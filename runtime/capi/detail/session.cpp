#include "runtime/capi/detail/session.hpp"

#include <fmt/format.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <bit>
#include <map>

#include "runtime/base/error.hpp"
#include "runtime/base/mutex.hpp"

namespace spillway::capi {
namespace {

/// The living sessions of this process.
struct Registry {
  Mutex mutex;  ///< guards also the uses of each session
  std::map<std::uintptr_t, std::unique_ptr<Session>> sessions SPILLWAY_GUARDED_BY(mutex);
  std::uintptr_t last SPILLWAY_GUARDED_BY(mutex) = 0;
};

/// Never destroyed: threads of the program may call while the process exits, and in a child made by
/// fork() there are no threads of the engine that a destructor could end.
Registry& registry() {
  static auto* const only = new Registry;
  return *only;
}

/// The process that made the first session; 0 before.
std::atomic<pid_t> home{0};

void check_process() {
  const pid_t first = home.load();
  check(first == 0 || first == getpid(), ErrorCode::not_supported,
        fmt::format("this process ({}) was forked from process {}, which has made trainers: their "
                    "threads are not here. Make trainers after the fork, or call exec first",
                    getpid(), first));
}

std::unique_ptr<Session>& find(Registry& all, spillway_trainer* handle)
    SPILLWAY_REQUIRES(all.mutex) {
  check(handle != nullptr, ErrorCode::invalid_argument,
        "the trainer is a null pointer: pass what spillway_create gives");
  const auto number = std::bit_cast<std::uintptr_t>(handle);
  const auto found = all.sessions.find(number);
  check(found != all.sessions.end(), ErrorCode::invalid_argument,
        number <= all.last
            ? fmt::format("trainer {} was destroyed: make another one with spillway_create", number)
            : fmt::format("{:#x} is no trainer: pass what spillway_create gives", number));
  return found->second;
}

}  // namespace

spillway_trainer* open_session() {
  check_process();
  Registry& all = registry();
  const Lock lock(all.mutex);
  home.store(getpid());
  all.sessions.emplace(all.last + 1, std::make_unique<Session>());
  return std::bit_cast<spillway_trainer*>(++all.last);
}

void close_session(spillway_trainer* handle) {
  check_process();
  Registry& all = registry();
  std::unique_ptr<Session> ended;  // outlives the lock: ending a session takes time
  const Lock lock(all.mutex);
  std::unique_ptr<Session>& session = find(all, handle);
  check(session->uses_ == 0, ErrorCode::busy,
        fmt::format("{} call(s) of other threads use trainer {}: let them return, then destroy it",
                    session->uses_, std::bit_cast<std::uintptr_t>(handle)));
  ended = std::move(session);
  all.sessions.erase(std::bit_cast<std::uintptr_t>(handle));
}

SessionUse::SessionUse(spillway_trainer* handle) {
  check_process();
  Registry& all = registry();
  const Lock lock(all.mutex);
  session_ = find(all, handle).get();
  ++session_->uses_;
}

SessionUse::~SessionUse() {
  const Lock lock(registry().mutex);
  --session_->uses_;
}

SoleUse::SoleUse(spillway_trainer* handle) : SessionUse(handle) {
  check(session_->sole_.try_lock(), ErrorCode::busy,
        "another thread is in a call on this trainer: only spillway_gradient_ready, "
        "spillway_gradient_read, spillway_wait and spillway_values may be called meanwhile");
  session_->calls_.lock();
}

SoleUse::~SoleUse() {
  session_->calls_.unlock();
  session_->sole_.unlock();
}

engine::EmbeddedTrainer& Session::trainer() const {
  check(started(), ErrorCode::invalid_argument,
        "the trainer has not started: call spillway_start first");
  return *trainer_;
}

Registered& Session::parameter(std::uint32_t index) {
  static_cast<void>(trainer());
  check(index < parameters.size(), ErrorCode::invalid_argument,
        fmt::format("there is no parameter {}: {} were added, and the first is 0", index,
                    parameters.size()));
  return parameters[index];
}

void Session::check_not_started() const {
  check(!started(), ErrorCode::invalid_argument,
        "the trainer has started: groups and parameters are added before spillway_start, which is "
        "called once");
}

void Session::start(engine::EmbeddedOptions options) {
  check_not_started();
  check(!parameters.empty(), ErrorCode::invalid_argument,
        "the trainer has no parameters: add them with spillway_add_parameter first");
  options.dtype = dtype;
  options.groups = groups;
  std::vector<engine::EmbeddedParameter> embedded;
  embedded.reserve(parameters.size());
  for (const Registered& parameter : parameters) {
    embedded.push_back({.name = parameter.name,
                        .elements = parameter.elements,
                        .group = parameter.group,
                        .unit = parameter.unit,
                        .values = parameter.start_values});
  }
  auto started = std::make_unique<engine::EmbeddedTrainer>(options, embedded);
  memory = started->memory();
  for (Registered& parameter : parameters) parameter.start_values = nullptr;
  trainer_ = std::move(started);
  find_values();
}

void Session::find_values() {
  for (std::uint32_t i = 0; i < parameters.size(); ++i) {
    parameters[i].values = trainer_->values(i).data();
    parameters[i].on_gpu = trainer_->keeps_on_gpu(i);
  }
}

}  // namespace spillway::capi
