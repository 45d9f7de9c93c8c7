# Project-wide settings and the two helpers that every folder uses.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(MLA_CCACHE ccache)
if(MLA_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${MLA_CCACHE})
  # Precompiled headers and ccache work together only with these.
  set(ENV{CCACHE_SLOPPINESS} pch_defines,time_macros)
endif()

add_compile_options(-Wall -Wextra -Wno-unused-parameter)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlaps in std::string (its bug 105329) and uninitialised
  # values in std::optional that are not there.
  add_compile_options(-Wno-restrict -Wno-stringop-overflow -Wno-array-bounds
                      -Wno-maybe-uninitialized)
endif()
if(MLA_WERROR)
  add_compile_options(-Werror)
endif()
if(MLA_SANITIZE)
  add_compile_options(-fsanitize=${MLA_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${MLA_SANITIZE})
endif()

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)

if(MLA_BUILD_COMPILER)
  find_package(MLIR REQUIRED CONFIG HINTS /usr/lib/llvm-22/lib/cmake/mlir)
  list(APPEND CMAKE_MODULE_PATH ${MLIR_CMAKE_DIR} ${LLVM_CMAKE_DIR})
  include(TableGen)
  include(AddLLVM)
  include(AddMLIR)
  separate_arguments(MLA_LLVM_DEFINITIONS NATIVE_COMMAND ${LLVM_DEFINITIONS})
endif()

include_directories(${PROJECT_SOURCE_DIR}/include ${PROJECT_BINARY_DIR}/include
                    ${PROJECT_SOURCE_DIR})

# mla_library(NAME sources... [LINK libs...]): a static library of ours that
# knows neither MLIR nor LLVM.
function(mla_library name)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK})
endfunction()

# mla_mlir_library(NAME sources... [LINK libs...] [DEPENDS targets...]): a static
# library over the two shared libraries MLIR and LLVM.
function(mla_mlir_library name)
  cmake_parse_arguments(ARG "" "" "LINK;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_UNPARSED_ARGUMENTS})
  target_include_directories(${name} SYSTEM PUBLIC ${LLVM_INCLUDE_DIRS}
                                                   ${MLIR_INCLUDE_DIRS})
  target_compile_definitions(${name} PUBLIC ${MLA_LLVM_DEFINITIONS})
  target_link_libraries(${name} PUBLIC ${ARG_LINK} MLIR LLVM)
  # Files that stand together in one (CMAKE_UNITY_BUILD) have one each, and read
  # their headers once anyway.
  set_target_properties(${name} PROPERTIES
    UNITY_BUILD_CODE_AFTER_INCLUDE "#undef DEBUG_TYPE"
    DISABLE_PRECOMPILE_HEADERS "${CMAKE_UNITY_BUILD}")
  if(ARG_DEPENDS)
    add_dependencies(${name} ${ARG_DEPENDS})
  endif()
endfunction()

# mla_embed(OUT files...): OUT is a list {"name", "text"}, ... of texts that a
# program carries, to be included in an array's initialiser; a file's name is
# without folder and extension. Made when CMake runs, which it does again when a
# file changes.
function(mla_embed out)
  set(entries "")
  foreach(file ${ARGN})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    get_filename_component(name ${file} NAME_WE)
    file(READ ${file} text)
    string(APPEND entries "{\"${name}\", R\"embedded(${text})embedded\"},\n")
  endforeach()
  # Only if it is different, so that nothing is compiled without need.
  file(CONFIGURE OUTPUT ${out} CONTENT "@entries@" @ONLY)
endfunction()
