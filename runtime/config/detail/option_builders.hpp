// How a member of TrainOptions becomes a row of the table of options. Included by the table only.
#pragma once

#include <algorithm>
#include <concepts>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/config/detail/config_file.hpp"
#include "runtime/config/keys.hpp"

namespace spillway::config::detail {

/// What a row says in words. An absent default is the member's own.
struct Words {
  std::string_view key;
  std::string_view meaning;
  std::string_view standard{};
};

/// Beyond this the arithmetic of fp32 overflows.
inline constexpr double kLargestNumber = 1e30;
inline constexpr Domain kFlag{.kind = Kind::flag};
inline constexpr Domain kNumber{.kind = Kind::number, .high = kLargestNumber};
inline constexpr Domain kPositive{.kind = Kind::number, .high = kLargestNumber, .above = true};
inline constexpr Domain kRate{.kind = Kind::rate, .high = kLargestNumber};
inline constexpr Domain kPart{.kind = Kind::number, .high = 1, .below = true};

/// Allows what `Type` holds; of 32 bits, what an int32 holds.
template <class Type>
Domain whole(double low = 0, double high = static_cast<double>(std::numeric_limits<Type>::max())) {
  constexpr double kMost = std::numeric_limits<std::int32_t>::max();
  return {
      .kind = Kind::whole, .low = low, .high = sizeof(Type) == 4 ? std::min(high, kMost) : high};
}

template <class Enum>
Domain names() {
  Domain domain{.kind = Kind::name};
  for (const Named<Enum>& each : names_of<Enum>()) domain.names.push_back(each.name);
  return domain;
}

/// Type of an option's value, inside of std::optional or not.
template <class Type>
struct Inner {
  using Value = Type;
};
template <class Type>
struct Inner<std::optional<Type>> {
  using Value = Type;
};

/// Values that any member of a type may have; numbers say theirs.
template <class Type>
Domain domain_of() {
  if constexpr (std::same_as<Type, bool>) return kFlag;
  if constexpr (std::is_enum_v<Type>) return names<Type>();
  if constexpr (std::integral<Type> && !std::same_as<Type, bool>) return whole<Type>();
  if constexpr (std::floating_point<Type>) return kNumber;
  if constexpr (std::same_as<Type, std::filesystem::path>) return {.kind = Kind::path};
  if constexpr (std::same_as<Type, std::string>) return {.kind = Kind::folder};
  if constexpr (std::same_as<Type, Bytes>) return {.kind = Kind::size};
}

/// Reads a `value` of the domain.
template <class Type>
Type from_json(const nlohmann::json& value) {
  if constexpr (std::is_enum_v<Type>) {
    const auto& names = names_of<Type>();
    return std::ranges::find(names, value.get<std::string_view>(), &Named<Type>::name)->value;
  } else if constexpr (std::same_as<Type, Bytes>) {
    return value.is_string() ? parse_bytes(value.get<std::string>())
                             : Bytes{value.get<std::uint64_t>()};
  } else if constexpr (std::same_as<Type, std::filesystem::path>) {
    return value.get<std::string>();
  } else {
    return value.get<Type>();
  }
}

template <class Type>
nlohmann::json to_json(const Type& value) {
  if constexpr (std::is_enum_v<Type>) {
    return config_name(value);
  } else if constexpr (std::same_as<Type, Bytes>) {
    return value.value();
  } else if constexpr (std::same_as<Type, std::filesystem::path>) {
    return value.empty() ? nlohmann::json() : nlohmann::json(value.string());
  } else {
    return value;
  }
}
template <class Type>
nlohmann::json to_json(const std::optional<Type>& value) {
  return value ? to_json(*value) : nlohmann::json();
}

/// Checks the value of a key that says nothing of its own.
inline void only_check(ConfigFile& file, const Option& self, TrainOptions& options) {
  static_cast<void>(file.value(self, options));
}

/// Reads the member at `Path`, a pointer to a member of TrainOptions or several, one in the other.
template <auto... Path>
void read_member(ConfigFile& file, const Option& self, TrainOptions& options) {
  auto& member = (options.*....*Path);
  using Type = typename Inner<std::remove_reference_t<decltype(member)>>::Value;
  if (const nlohmann::json* const value = file.value(self, options)) {
    member = from_json<Type>(*value);
  }
}

template <auto... Path>
nlohmann::json value_of_member(const Option&, const TrainOptions& options) {
  return to_json((options.*....*Path));
}

/// Adds rows to the table that are alike in what `alike` says.
class Rows {
 public:
  Rows(std::vector<Option>& table, Option alike) : table_(table), alike_(std::move(alike)) {}

  /// Adds the row of a member that is read and written as it is.
  template <auto... Path>
  Option& member(const Words& words) {
    using Type = std::remove_cvref_t<decltype((std::declval<TrainOptions&>().*....*Path))>;
    return member<Path...>(words, domain_of<typename Inner<Type>::Value>());
  }
  template <auto... Path>
  Option& member(const Words& words, const Domain& domain) {
    Option& row = own(words, domain, read_member<Path...>, value_of_member<Path...>);
    if (row.standard.empty()) row.standard = shown_default(row);
    return row;
  }
  /// Adds the row of anything else. Without `value` it is never written: it says what another key
  /// says.
  Option& own(const Words& words, const Domain& domain, decltype(Option::read) read,
              decltype(Option::value) value = nullptr);

 private:
  static std::string shown_default(const Option& row);

  std::vector<Option>& table_;
  Option alike_;
};

// Add the rows of each group of sections, in the order of the guide.
void add_batch_and_precision(std::vector<Option>& table);
void add_optimizer(std::vector<Option>& table);
void add_scheduler(std::vector<Option>& table);
void add_homes(std::vector<Option>& table);
void add_spillway(std::vector<Option>& table);

}  // namespace spillway::config::detail
