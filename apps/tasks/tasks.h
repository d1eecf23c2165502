// The core's tasks: each is one file in apps/tasks/, which defines its subcommand, and one line here.
#pragma once
#include "apps/cli/subcommand.h"

namespace runnel {

void add_copy(Subcommand program);
void add_mnist(Subcommand program);
void add_cifar10(Subcommand program);
void add_images(Subcommand program);
void add_recall(Subcommand program);
void add_text(Subcommand program);

inline constexpr void (*all_tasks[])(Subcommand) = {add_copy, add_mnist, add_cifar10, add_images, add_text, add_recall};

}  // namespace runnel
