# discover_tests(target): a ctest test for every test case of a doctest program, labelled with its file
# (tests/test_matmul.cpp: "matmul"); where its name is an op's or begins with it, with "ops". They are listed whenever
# the program has been linked. doctest's own doctest_discover_tests would need a test suite around each file, and one
# process per test case, to find labels. And in the folder by_file, for ctest --test-dir, a test for each file of an op's
# tests, of its cases but those that the patterns in $LEFT_OUT name: under sanitizers a process takes long to begin.
cmake_minimum_required(VERSION 3.22)

if(NOT CMAKE_SCRIPT_MODE_FILE)
  set(discover_tests_script ${CMAKE_CURRENT_LIST_FILE})
  function(discover_tests target)
    set(list ${CMAKE_CURRENT_BINARY_DIR}/${target}.cmake)
    add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${list} VERBATIM
      COMMAND ${CMAKE_COMMAND} "-DPROGRAM=${CMAKE_CROSSCOMPILING_EMULATOR};$<TARGET_FILE:${target}>" "-DOPS=${tested_ops}" -DOUTPUT=${list}
              -P ${discover_tests_script})
    if(NOT EXISTS ${list})
      file(WRITE ${list} "add_test(${target}_is_not_built ${target})\n")
    endif()
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${list})
  endfunction()
  return()
endif()

list(REMOVE_ITEM PROGRAM "")
list(JOIN PROGRAM "]==] [==[" program)  # an emulator, if it is of another processor, and the program
execute_process(COMMAND ${PROGRAM} --list-test-cases --reporters=xml OUTPUT_VARIABLE xml COMMAND_ERROR_IS_FATAL ANY)
string(ASCII 1 semicolon)  # in names, these three would confuse CMake's lists
string(ASCII 2 open)
string(ASCII 3 close)
string(REPLACE ";" "${semicolon}" xml "${xml}")
string(REPLACE "[" "${open}" xml "${xml}")
string(REPLACE "]" "${close}" xml "${xml}")
string(REGEX REPLACE "([^;]*/)" "" ops "${OPS}")
string(REPLACE ";" "|" ops "${ops}")
string(REGEX MATCHALL "<TestCase [^\n]*" cases "${xml}")
set(script "")
set(by_file "")
foreach(case IN LISTS cases)
  string(REGEX REPLACE ".* name=\"([^\"]*)\".*" "\\1" name "${case}")
  string(REGEX REPLACE ".* filename=\"([^\"]*/)?(test_)?([^\"]*)\\.cpp\".*" "\\3" file "${case}")
  string(REPLACE "${semicolon}" ";" name "${name}")
  string(REPLACE "${open}" "[" name "${name}")
  string(REPLACE "${close}" "]" name "${name}")
  string(REPLACE "&lt;" "<" name "${name}")
  string(REPLACE "&gt;" ">" name "${name}")
  string(REPLACE "&quot;" "\"" name "${name}")
  string(REPLACE "&amp;" "&" name "${name}")
  string(REPLACE "," "\\," filter "${name}")
  set(cost 0)
  if(file STREQUAL examples)
    set(cost 50)  # they train, so they begin first
  endif()
  set(labels ${file})
  if(file MATCHES "^(${ops})(_|$)")
    list(APPEND labels ops)
    list(APPEND op_files ${file})
    math(EXPR cases_of_${file} "0${cases_of_${file}} + 1")
  endif()
  string(APPEND script "add_test([==[${name}]==] [==[${program}]==] [==[--test-case=${filter}]==] --skip-status=77)\n"
         "set_tests_properties([==[${name}]==] PROPERTIES SKIP_RETURN_CODE 77 LABELS \"${labels}\" COST ${cost})\n")
endforeach()
file(WRITE ${OUTPUT} "${script}")

if(op_files)
  list(REMOVE_DUPLICATES op_files)
  foreach(file IN LISTS op_files)
    string(APPEND by_file "add_test(${file} [==[${program}]==] --source-file=*/test_${file}.cpp \"--test-case-exclude=\$ENV{LEFT_OUT}\")\n"
           "set_tests_properties(${file} PROPERTIES COST ${cases_of_${file}})\n")
  endforeach()
  get_filename_component(folder ${OUTPUT} DIRECTORY)
  file(WRITE ${folder}/by_file/CTestTestfile.cmake "${by_file}")
endif()
