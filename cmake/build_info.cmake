# Writes build_info.cpp, what version_text() says of a build: cmake -DVERSION=... -DOUTPUT=... -P build_info.cmake
cmake_minimum_required(VERSION 3.22)
set(source ${CMAKE_CURRENT_LIST_DIR}/..)
set(COMMIT "")
execute_process(COMMAND git -C ${source} rev-parse --show-cdup OUTPUT_VARIABLE up RESULT_VARIABLE status
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(status EQUAL 0 AND up STREQUAL "")  # a repository of our own, not one that this folder was copied into
  execute_process(COMMAND git -C ${source} describe --always --dirty --abbrev=12 --exclude * OUTPUT_VARIABLE COMMIT
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
configure_file(${CMAKE_CURRENT_LIST_DIR}/build_info.cpp.in ${OUTPUT} @ONLY)
