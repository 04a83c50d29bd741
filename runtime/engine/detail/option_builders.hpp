// How a member of TrainOptions becomes a row of the table of options. Included by the table only.
#pragma once

#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/engine/detail/config_section.hpp"
#include "runtime/engine/options_table.hpp"

namespace spillway::engine::detail {

/// What every row says in words.
struct Words {
  std::string_view key;
  Part part;
  std::string_view standard;
  std::string_view meaning;
  std::string_view automatic{};  ///< what "auto" becomes; empty: it is refused
};

struct Limits {
  std::uint64_t low = 0;
  std::uint64_t high = std::numeric_limits<std::uint64_t>::max();
};

/// The type that an option's value has, inside of std::optional or not.
template <class Type>
struct Inner {
  using Value = Type;
  static constexpr bool kOptional = false;
};
template <class Type>
struct Inner<std::optional<Type>> {
  using Value = Type;
  static constexpr bool kOptional = true;
};

template <class Member>
struct MemberType;
template <class Type>
struct MemberType<Type TrainOptions::*> {
  using Value = Type;
};

/// "fp32, bf16 or fp16".
template <class Enum>
std::string names_in_words() {
  const auto names = names_of<Enum>();
  std::string words;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i > 0) words += i + 1 == names.size() ? " or " : ", ";
    words += fmt::format("`{}`", names[i].name);
  }
  return words;
}

template <class Type>
std::string type_in_words(Limits limits) {
  if constexpr (std::same_as<Type, bool>) return "true or false";
  if constexpr (std::is_enum_v<Type>) return names_in_words<Type>();
  if constexpr (std::same_as<Type, Bytes>) return "a size";
  if constexpr (std::is_floating_point_v<Type>) return "a number above 0";
  if constexpr (std::is_integral_v<Type> && !std::same_as<Type, bool>) {
    const bool any = limits.high == std::numeric_limits<std::uint64_t>::max();
    if (any) return fmt::format("a whole number from {}", limits.low);
    return fmt::format("a whole number from {} to {}", limits.low, limits.high);
  }
  return "a path or an array of paths";
}

/// Reads one value of `Type` under `option.key`; nothing where it is absent.
template <class Type>
std::optional<Type> read_value(Section& section, const Option& option) {
  const AutoMeans automatic{option.automatic};
  if constexpr (std::same_as<Type, bool>) {
    return section.flag(option.key, automatic);
  } else if constexpr (std::same_as<Type, Bytes>) {
    return section.size(option.key);
  } else if constexpr (std::is_enum_v<Type>) {
    if (!option.automatic.empty() && section.text(option.key) == "auto") return std::nullopt;
    return section.choice<Type>(option.key);
  } else if constexpr (std::is_floating_point_v<Type>) {
    return section.non_negative(option.key, automatic);
  } else {
    const auto value = section.integer(option.key, option.low, option.high, automatic);
    return value ? std::optional(static_cast<Type>(*value)) : std::nullopt;
  }
}

template <class Type>
nlohmann::ordered_json json_of(const Type& value) {
  if constexpr (std::is_enum_v<Type>) {
    return config_name(value);
  } else if constexpr (std::same_as<Type, Bytes>) {
    return value.value();
  } else {
    return value;
  }
}

/// The row of a member that the table reads and writes by itself.
template <auto Member>
Option member_option(std::string_view section, const Words& words, Limits limits = {}) {
  using Declared = typename MemberType<decltype(Member)>::Value;
  using Type = typename Inner<Declared>::Value;
  constexpr bool kNumber = std::is_integral_v<Type> && !std::same_as<Type, bool>;
  if constexpr (kNumber && sizeof(Type) == 4) {
    limits.high = std::min<std::uint64_t>(limits.high, std::numeric_limits<std::int32_t>::max());
  }
  Option option{.section = section,
                .key = words.key,
                .part = words.part,
                .type = type_in_words<Type>(limits),
                .standard = words.standard,
                .meaning = words.meaning,
                .automatic = words.automatic};
  if (kNumber) {
    option.low = limits.low;
    option.high = limits.high;
  }
  option.read = [](Section& from, const Option& self, TrainOptions& options) {
    assign(options.*Member, read_value<Type>(from, self));
  };
  option.write = [](nlohmann::ordered_json& json, const Option& self, const TrainOptions& options) {
    if constexpr (Inner<Declared>::kOptional) {
      if (options.*Member) json[self.key] = json_of(*(options.*Member));
    } else {
      json[self.key] = json_of(options.*Member);
    }
  };
  return option;
}

/// The row of an option that the code of its section reads and writes.
Option given_option(std::string_view section, std::string_view type, const Words& words);

/// The rows of DeepSpeed's sections.
[[nodiscard]] std::vector<Option> deepspeed_options();

}  // namespace spillway::engine::detail
