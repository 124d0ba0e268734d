#include "serve/disk.h"

rg_code rg_disk_open(rg_vault **out, const char *folder, uint64_t quota_bytes,
                     const rg_session *session, rg_status *st) {
    *out = NULL;
    if (!folder) return RG_OK;
    uint8_t identity[16];
    RG_TRY(rg_session_identity(session, identity, st));
    return rg_vault_open(out, folder, quota_bytes, identity, st);
}

uint32_t rg_disk_load(rg_vault *v, rg_prefix *p, uint32_t i, const int32_t *ids, size_t n,
                      uint32_t cached) {
    if (!v || n < RG_DISK_TOKENS_MIN) return cached;
    const uint32_t found = rg_vault_find(v, ids, n, rg_session_capacity(rg_prefix_session(p, i)));
    if (found < cached + RG_DISK_TOKENS_MIN && !(found == n && cached < found)) return cached;
    rg_status st = {0};
    uint8_t *data = NULL;
    uint64_t bytes = 0;
    rg_code rc = rg_vault_read(v, ids, found, &data, &bytes, &st);
    if (rc != RG_OK) {
        rg_log(RG_LOG_WARN, "prefix cache: %s", st.message);
        return cached; /* the session was not touched */
    }
    rg_session *s = rg_prefix_session(p, i);
    rg_prefix_forget(p, i);
    rc = rg_session_import(s, found, data, bytes, &st);
    rg_free(data);
    if (rc == RG_OK && (found < n || rg_session_has_logits(s))) {
        rg_prefix_keep(p, i);
        return found;
    }
    rg_session_reset(s);
    if (rc != RG_OK) rg_log(RG_LOG_WARN, "prefix cache: %s", st.message);
    return 0;
}

static void save(rg_vault *v, const rg_session *s, const rg_snapshot *snap) {
    const uint64_t bytes = rg_session_export_bytes(s, snap);
    rg_status st = {0};
    uint8_t *data = rg_alloc(1, bytes, &st);
    rg_code rc = data ? RG_OK : RG_NOMEM;
    if (rc == RG_OK) {
        rg_session_export(s, snap, data);
        rc = rg_vault_write(v, rg_session_ids(s), rg_snapshot_length(snap), data, bytes, &st);
    }
    rg_free(data);
    if (rc != RG_OK) rg_log(RG_LOG_WARN, "prefix cache: %s", st.message);
}

void rg_disk_save(rg_vault *v, rg_prefix *p, uint32_t i, uint32_t n_prompt) {
    rg_session *s = rg_prefix_session(p, i);
    const uint32_t length = rg_session_length(s);
    if (!v || length < RG_DISK_TOKENS_MIN || n_prompt > length) return;
    rg_vault_forget_shorter(v, rg_session_ids(s), n_prompt, 1);
    const rg_snapshot *prompt = rg_prefix_find(p, i, n_prompt);
    if (prompt && n_prompt >= RG_DISK_TOKENS_MIN) save(v, s, prompt);
    rg_snapshot *now = NULL;
    if (rg_session_snapshot(&now, s, NULL) != RG_OK) return;
    save(v, s, now);
    rg_snapshot_destroy(now);
}
