"""Finds, fetches and verifies the files that promptrl needs: model weights and benchmark data.

Looked up in this order: an explicit path; `PROMPTRL_DATA_DIR` or `PROMPTRL_MODEL_DIR`; the installed package that ships
the file; the cache; then the downloads that `promptrl.assets.table` names. Whatever has a pinned sha256 is checked.
"""

from promptrl.assets.store import find_asset, find_data, find_model
from promptrl.assets.table import ASSETS, Asset, asset_named
from promptrl.assets.verify import cache_dir

__all__ = ["ASSETS", "Asset", "asset_named", "cache_dir", "find_asset", "find_data", "find_model"]
