"""Creates TensorBoard summaries without TensorFlow, which TensorBoard's own functions would need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Layout = Mapping[str, Mapping[str, Sequence[str]]]
"""Layout of charts: category -> chart -> regular expressions of the tags in the chart."""


def charts(layout: Layout) -> Any:
    """Return the summary that defines the charts of the tab «Custom scalars»."""
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.custom_scalar import layout_pb2, metadata

    def chart(title: str, tags: Sequence[str]) -> Any:
        return layout_pb2.Chart(title=title, multiline=layout_pb2.MultilineChartContent(tag=[*tags]))

    categories = [
        layout_pb2.Category(title=name, chart=[chart(title, tags) for title, tags in inside.items()])
        for name, inside in layout.items()
    ]
    packed = layout_pb2.Layout(category=categories).SerializeToString()
    tensor = TensorProto(dtype="DT_STRING", string_val=[packed], tensor_shape=TensorShapeProto())
    about = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name=metadata.PLUGIN_NAME))
    return Summary(value=[Summary.Value(tag=metadata.CONFIG_SUMMARY_TAG, tensor=tensor, metadata=about)])


def compared_by(settings: Mapping[str, bool | float | str], metrics: Mapping[str, str]) -> Any:
    """Return the summary for the tab «HParams»: the settings of a run, and the tags for comparisons of runs.

    `metrics`: tag -> its description.
    """
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata, plugin_data_pb2

    types = {
        bool: api_pb2.DATA_TYPE_BOOL,
        float: api_pb2.DATA_TYPE_FLOAT64,
        str: api_pb2.DATA_TYPE_STRING,
    }
    experiment = api_pb2.Experiment(
        hparam_infos=[api_pb2.HParamInfo(name=name, type=types[type(one)]) for name, one in settings.items()],
        metric_infos=[
            api_pb2.MetricInfo(name=api_pb2.MetricName(tag=tag), display_name=tag, description=said)
            for tag, said in metrics.items()
        ],
    )
    about = metadata.create_summary_metadata(plugin_data_pb2.HParamsPluginData(experiment=experiment))
    return Summary(
        value=[Summary.Value(tag=metadata.EXPERIMENT_TAG, tensor=metadata.NULL_TENSOR, metadata=about)]
    )


def image(tag: str, png: bytes, size: tuple[int, int], description: str) -> Any:
    """Return the summary of a PNG image for the tab «Images»; `size` is (width, height) in pixels."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.plugins.image import metadata

    width, height = (str(one).encode() for one in size)
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=3)])
    tensor = TensorProto(dtype="DT_STRING", string_val=[width, height, png], tensor_shape=shape)
    about = metadata.create_summary_metadata(display_name=tag, description=description)
    return Summary(value=[Summary.Value(tag=tag, tensor=tensor, metadata=about)])
