#include "tamis/threads/openmp_library.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace tamis::threads {
namespace {

/// Functions that openmp.cc replaces.
constexpr std::array kReplaced = {
    "GOMP_parallel",
    "GOMP_barrier",
    "GOMP_single_start",
    "GOMP_sections_start",
    "GOMP_sections_next",
    "GOMP_sections_end",
    "GOMP_sections_end_nowait",
    "GOMP_loop_dynamic_start",
    "GOMP_loop_dynamic_next",
    "GOMP_loop_nonmonotonic_dynamic_start",
    "GOMP_loop_nonmonotonic_dynamic_next",
    "GOMP_loop_ordered_dynamic_start",
    "GOMP_loop_ordered_dynamic_next",
    "GOMP_loop_end",
    "GOMP_loop_end_nowait",
    "GOMP_ordered_start",
    "GOMP_ordered_end",
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_in_parallel",
};

/// Functions of libgomp that work in any thread, including those that libgomp did not start.
constexpr std::array kIndependent = {
    "GOMP_atomic_start",        "GOMP_atomic_end",        "GOMP_critical_start", "GOMP_critical_end",
    "GOMP_critical_name_start", "GOMP_critical_name_end", "omp_get_max_threads", "omp_set_num_threads",
    "omp_get_num_procs",        "omp_get_dynamic",        "omp_set_dynamic",     "omp_get_nested",
    "omp_set_nested",           "omp_init_lock",          "omp_destroy_lock",    "omp_set_lock",
    "omp_unset_lock",           "omp_test_lock",          "omp_get_wtime",       "omp_get_wtick",
};

template <typename Names>
bool contains(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// The dynamic section of a loaded library or program.
class Loaded {
 public:
  explicit Loaded(const dl_phdr_info& info) : name_(info.dlpi_name), base_(info.dlpi_addr) {
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      if (info.dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
      dynamic_ = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + info.dlpi_phdr[i].p_vaddr);
    }
    strings_ = table<char>(DT_STRTAB);
    symbols_ = table<ElfW(Sym)>(DT_SYMTAB);
    hashes_ = table<uint32_t>(DT_GNU_HASH);
  }

  std::string_view name() const { return name_; }

  /// Calls `visit(name)` for every library that it is linked to.
  template <typename Visit>
  void needed(const Visit& visit) const {
    if (strings_ == nullptr) return;
    for (const ElfW(Dyn)* entry = dynamic_; entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag == DT_NEEDED) visit(std::string_view(strings_ + entry->d_un.d_val));
    }
  }

  /// Calls `visit(name)` for every imported symbol; false when the symbol tables are missing.
  template <typename Visit>
  bool imported(const Visit& visit) const {
    if (strings_ == nullptr || symbols_ == nullptr || hashes_ == nullptr) return false;
    const uint32_t first_exported = hashes_[1];
    for (uint32_t i = 0; i < first_exported; ++i) {
      if (symbols_[i].st_shndx == SHN_UNDEF) visit(std::string_view(strings_ + symbols_[i].st_name));
    }
    return true;
  }

 private:
  template <typename T>
  const T* table(ElfW(Sxword) tag) const {
    for (const ElfW(Dyn)* entry = dynamic_; entry != nullptr && entry->d_tag != DT_NULL; ++entry) {
      if (entry->d_tag != tag) continue;
      const ElfW(Addr) address = entry->d_un.d_ptr;  // relocated by the dynamic linker if the section is writable
      return reinterpret_cast<const T*>(address < base_ ? base_ + address : address);
    }
    return nullptr;
  }

  const char* name_;
  ElfW(Addr) base_;
  const ElfW(Dyn) * dynamic_ = nullptr;
  const char* strings_ = nullptr;
  const ElfW(Sym) * symbols_ = nullptr;
  const uint32_t* hashes_ = nullptr;
};

/// Calls `visit(loaded)` for the program and every loaded library.
template <typename Visit>
void for_each_loaded(Visit visit) {
  const auto call = [](dl_phdr_info* info, size_t, void* data) {
    (*static_cast<Visit*>(data))(Loaded(*info));
    return 0;
  };
  dl_iterate_phdr(call, &visit);
}

bool is_libgomp(std::string_view path) {
  return path.substr(path.rfind('/') + 1).starts_with("libgomp");
}

bool is_other_openmp(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return name.starts_with("libomp") || name.starts_with("libiomp");
}

void* open_library() {
  std::string path;
  for_each_loaded([&](const Loaded& loaded) {
    if (is_libgomp(loaded.name()) || (path.empty() && is_other_openmp(loaded.name()))) path = loaded.name();
  });
  return path.empty() ? nullptr : dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
}

bool set_up_by_the_user() {
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    if (text.starts_with("OMP_NUM_THREADS=")) continue;
    if (text.starts_with("OMP_") || text.starts_with("GOMP_")) return true;
  }
  return false;
}

bool all_imports_fit() {
  bool fit = true;
  for_each_loaded([&](const Loaded& loaded) {
    bool uses_libgomp = false;
    loaded.needed([&](std::string_view library) {
      uses_libgomp |= is_libgomp(library);
      fit &= !is_other_openmp(library);
    });
    if (!uses_libgomp) return;
    const bool found = loaded.imported([&](std::string_view name) {
      if (!name.starts_with("GOMP_") && !name.starts_with("omp_")) return;
      fit &= contains(kReplaced, name) || contains(kIndependent, name);
    });
    fit &= found;
  });
  return fit;
}

}  // namespace

void* openmp_function(const char* name) {
  static void* const library = open_library();
  void* const function = library == nullptr ? nullptr : dlsym(library, name);
  if (function != nullptr) return function;
  std::fprintf(stderr, "tamis: %s was called, but no loaded OpenMP library defines it\n", name);
  std::abort();
}

bool team_serves_openmp() {
  static const bool serves = !set_up_by_the_user() && all_imports_fit();
  return serves;
}

}  // namespace tamis::threads
