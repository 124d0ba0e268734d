/* What the commands say about themselves beyond one line, manual pages and shell completions, all
 * from the tables that parse the command line. `make install` runs them.
 */
#include <string.h>

#include "cli/cli.h"

static const struct {
    const char *command, *text;
} DETAILS[] = {
    {"run", "The prompt goes through the model's chat template unless --raw is given. Progress and "
            "figures go to standard error."},
    {"logits", "Positions are evaluated as a prompt; with --decode the last ones one at a time. "
               "--hash is the same for every memory budget, thread count and chunk."},
    {"quantize",
     "A mix is a type for each role of a tensor; --list shows them with the bytes of an expert. "
     "Vectors, convolutions, router and other small operands stay as they are unless a rule names "
     "them. Rows that a type cannot hold get the narrowest of q2_0, iq4_nl, q5_0, q5_1, q8_0, f16 "
     "that is not coarser, and the report says so. With --target-bytes the types come from "
     "measured errors: see docs/quantize.md. The same input gives the same bytes for any number of "
     "threads. The file appears under its name when it is whole; a run that was killed is "
     "continued."},
    {"convert",
     "FOLDER holds config.json, tokenizer.json, tokenizer_config.json and safetensors of a "
     "qwen4_exp model: F32, F16, BF16, or fp8 with scales for blocks of 128 x 128; experts one by "
     "one or fused. Memory does not grow with the model. A missing or misshapen tensor is named "
     "and nothing is left; a run that was killed is continued."},
    {"imatrix",
     "The text is cut into windows with a fresh state each; control tokens in it are parsed, so "
     "conversations can be given as the model sees them. Experts are counted one by one; those "
     "that saw few tokens lean on the mean of their layer when the file is used."},
    {"pull",
     "Without QUANT the repository must hold one model. Split models come whole. Environment: "
     "HF_ENDPOINT (another hub), HF_TOKEN (for closed models; sent to the first host only), "
     "REGOLITH_MODELS (the store). Size and sha256 are checked; an interrupted download goes on."},
    {"kld", "Several -m compare several files with one reference: size, speed and divergence in "
            "one table. --save writes the reference, with the identity of text and vocabulary."},
    {"ppl", "Every window starts with a fresh state; its first token is not scored."},
    {"bench",
     "--ab interleaves the values it compares, so that drifts of the machine cancel. --kernels "
     "prints the time, bytes and multiply-adds of every kernel and type of weights, beside "
     "the rates this machine reaches at most, measured in the same run; runs that are "
     "timed and runs that are not take turns, so the cost of timing is shown too. With --backend "
     "vulkan the rows are the device's own times, and one row is the time it had no work. --sweep "
     "times every shape of the model's products on the GPU and keeps the best for later starts; "
     "answers do not change."},
    {"pack", "The pack is used from then on when it lies beside the model."},
};

const char *cli_details(const char *command) {
    for (size_t i = 0; i < sizeof DETAILS / sizeof *DETAILS; i++) {
        if (strcmp(DETAILS[i].command, command) == 0) return DETAILS[i].text;
    }
    return NULL;
}

/* ---- manual pages -----------------------------------------------------------------------------
 */

/* Text for roff: backslashes and hyphens as they are, no request at the start of a line. */
static void put_roff(const char *text) {
    if (!text) return;
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (; *text; text++) {
        if (*text == '\\' || *text == '-') putchar('\\');
        putchar(*text);
    }
}

static void put_flag(void *user, const cli_flag_facts *f) {
    (void)user;
    if (!f->help) return;
    fputs(".TP\n\\fB", stdout);
    if (f->letter) printf("\\-%c\\fR, \\fB", f->letter);
    fputs("\\-\\-", stdout);
    put_roff(f->name);
    fputs("\\fR", stdout);
    if (f->arg) {
        fputs(" \\fI", stdout);
        put_roff(f->arg);
        fputs("\\fR", stdout);
    }
    putchar('\n');
    put_roff(f->help);
    putchar('\n');
}

static void put_page(const cli_command *c) {
    char dashed[64];
    snprintf(dashed, sizeof dashed, "%s", c->name);
    for (char *p = dashed; *p; p++)
        *p = *p == ' ' ? '-' : *p;
    printf(".TH REGOLITH\\-%s 1 \"\" \"regolith %s\"\n.SH NAME\nregolith\\-", dashed, RG_VERSION);
    put_roff(dashed);
    fputs(" \\- ", stdout);
    put_roff(c->summary);
    printf("\n.SH SYNOPSIS\n\\fBregolith %s\\fR ", c->name);
    put_roff(c->usage);
    fputs("\n.SH DESCRIPTION\n", stdout);
    put_roff(c->summary);
    putchar('\n');
    if (cli_details(c->name)) {
        fputs(".PP\n", stdout);
        put_roff(cli_details(c->name));
        putchar('\n');
    }
    fputs(".SH OPTIONS\n", stdout);
    cli_each_flag(c, put_flag, NULL);
    fputs(".SH EXIT STATUS\n0 ok, 1 failure, 2 wrong usage, 130 interrupted.\n", stdout);
}

static const cli_command *find_command(const char *name) {
    for (size_t i = 0; cli_command_at(i); i++) {
        const char *a = cli_command_at(i)->name;
        size_t k = 0;
        while (a[k] && (a[k] == name[k] || (a[k] == ' ' && name[k] == '-')))
            k++;
        if (!a[k] && !name[k]) return cli_command_at(i);
    }
    return NULL;
}

int cli_manual(const cli_options *opt) {
    if (opt->n_args != 1) return cli_usage("manual", "name a command");
    const cli_command *c = find_command(opt->args[0]);
    if (!c) return cli_usage("manual", "unknown command %s", opt->args[0]);
    put_page(c);
    return cli_finish_output();
}

/* ---- completions ------------------------------------------------------------------------------
 */

static void put_word(void *user, const cli_flag_facts *f) {
    (void)user;
    if (f->help) printf(" --%s", f->name);
}

static void complete_bash(void) {
    printf("_regolith() {\n    local cur=${COMP_WORDS[COMP_CWORD]} words=\n"
           "    case ${COMP_WORDS[1]}${COMP_WORDS[2]:+ ${COMP_WORDS[2]}} in\n");
    for (size_t i = 0; cli_command_at(i); i++) {
        const cli_command *c = cli_command_at(i);
        printf("    \"%s\"*) words=\"", c->name);
        cli_each_flag(c, put_word, NULL);
        printf("\" ;;\n");
    }
    printf("    esac\n    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words=\"");
    for (size_t i = 0; cli_command_at(i); i++) {
        const char *name = cli_command_at(i)->name;
        printf("%.*s ", (int)strcspn(name, " "), name);
    }
    printf("\"\n    fi\n    COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n}\n"
           "complete -o default -F _regolith regolith\n");
}

static void put_fish(void *user, const cli_flag_facts *f) {
    const char *command = user;
    if (!f->help) return;
    printf("complete -c regolith -n '__fish_seen_subcommand_from %.*s' -l %s%s -d '",
           (int)strcspn(command, " "), command, f->name, f->arg ? " -r" : "");
    for (const char *p = f->help; *p; p++) {
        if (*p == '\'') putchar('\\');
        putchar(*p);
    }
    printf("'\n");
}

static void complete_fish(void) {
    for (size_t i = 0; cli_command_at(i); i++) {
        const cli_command *c = cli_command_at(i);
        printf("complete -c regolith -n __fish_use_subcommand -a %.*s\n",
               (int)strcspn(c->name, " "), c->name);
        char name[64];
        snprintf(name, sizeof name, "%s", c->name);
        cli_each_flag(c, put_fish, name);
    }
}

int cli_completion(const cli_options *opt) {
    const char *shell = opt->n_args == 1 ? opt->args[0] : "";
    if (strcmp(shell, "bash") == 0) {
        complete_bash();
    } else if (strcmp(shell, "zsh") == 0) {
        printf("autoload -U +X bashcompinit && bashcompinit\n");
        complete_bash();
    } else if (strcmp(shell, "fish") == 0) {
        complete_fish();
    } else {
        return cli_usage("completion", "give bash, zsh or fish");
    }
    return cli_finish_output();
}
