"""One Prefect task per remote effect: an evaluation opened, a segment sent, it closed."""

from prefect_prime.tasks.evaluations import (
    EvaluationSpec,
    OpenedEvaluation,
    close_evaluation,
    open_evaluation,
    recorded_status,
)
from prefect_prime.tasks.uploads import (
    SamplesUpload,
    TracesUpload,
    upload_samples,
    upload_traces,
)

__all__ = [
    "EvaluationSpec",
    "OpenedEvaluation",
    "SamplesUpload",
    "TracesUpload",
    "close_evaluation",
    "open_evaluation",
    "recorded_status",
    "upload_samples",
    "upload_traces",
]
