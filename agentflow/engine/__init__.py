"""Token ids in, token ids out: the engines, and the bookkeeping that keeps an episode exact.

TurnModel ──▶ TokenRecord (ids, log-probs, masks, versions; only grows)
    │  renders with TemplateRenderer, never what was generated
    ▼
Model:  sglang/ (real servers)   scripted (a policy, a recorded run)   ..sim (virtual time)
"""
